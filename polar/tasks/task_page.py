"""docs/task.md: every field of a TaskRequest, made from its schema, and the settings of the plug-ins that are installed.

Names, types, defaults and bounds come from the types that check a task; meanings are their docstrings. A harness or an evaluator names the
struct of its settings as `settings_type`; one without it has none to show.
"""

from __future__ import annotations

import json
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from topics.contract import docstrings
from topics.environment import registry
from topics.types import building, runtime, task
from topics.types.errors import InputError

EXAMPLE = """\
task_id: mend-7
instruction: Make the tests pass (python -m pytest), and leave them as they are.
num_samples: 8
runtime:
  prepare:
    - {type: upload_dir, source: repo, target: .}            # relative to this file; uploaded when you submit
    - {type: exec, command: git init -q && git add -A && git commit -qm start}
  eval_prepare:
    - {type: upload_dir, source: hidden_tests, target: tests}
  network: allowlist
  allowed_hosts: [pypi.org]
  memory_mb: 2048
  pids: 512
agent:
  harness: pi
  model_name: my-policy
  settings: {max_tokens: 8192}
  env: {LANG: C.UTF-8}
sampling: {temperature: 0.8}
limits: {calls: 100, tokens: 200000}
timeouts: {init: 300, run: 1800, evaluate: 300}
evaluator:
  strategy: test_on_output
  config:
    test_command: python -m pytest --junitxml={report}
    report: junit.xml
    expected_output_json: {"tests/test_powers.py::test_powers": PASSED}
builder:
  strategy: prefix_merging
  config: {filters: {drop_truncated: true}}
max_attempts: 2
priority: 50
early_stop: {usable: 6}
metadata: {user: ana, suite: nightly}
"""
HEAD = f"""\
# A task, field by field

Every field of a task, made by `polar tasks docs` from the types that check it. A task is YAML, JSON, or a record on `polar.tasks`. A field
that isn't here is refused by name. [tasks.md](tasks.md) explains order, uploads and long lists of tasks.

```yaml
{EXAMPLE}```

A default of `null` means that nothing is set. Numbers of tokens, calls and samples are counts; times are seconds.
"""
TABLE = ("| field | type | default | bounds | meaning |", "|---|---|---|---|---|")
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Row:
    """A field."""

    name: str
    hint: Any
    """Its type, with the bounds of what is inside."""
    default: object
    """PydanticUndefined if there is none."""
    bounds: tuple[object, ...]
    meaning: str

    @property
    def type_words(self) -> str:
        return docstrings.type_words(self.hint).replace("`False`", "`false`")

    @property
    def is_map(self) -> bool:
        return self.type_words.startswith("map of")


@dataclass(frozen=True)
class Section:
    """A type with fields, and the places of a task that have it."""

    described: type
    places: tuple[str, ...]

    @property
    def heading(self) -> str:
        return ", ".join(f"`{place}`" for place in self.places)


def page() -> str:
    """The page, for the plug-ins that are installed here."""
    sections = _sections([Section(task.TaskRequest, ("task",))])
    links = _links(sections)
    lines = [HEAD, *(line for section in sections for line in _section(section, links, "##"))]
    lines += ["## Runtimes", "", *_runtimes()]
    lines += ["## Harnesses", "", "The settings of each harness (`agent.settings`).", ""]
    lines += _plug_ins(registry.Kind.HARNESS, "harness", "agent.settings")
    lines += ["## Evaluators", "", "The settings of each evaluator (`evaluator.config`).", ""]
    lines += _plug_ins(registry.Kind.EVALUATOR, "evaluator", "evaluator.config")
    lines += ["## Builders", "", "The settings of each builder (`builder.config`).", ""]
    shown: set[type] = set()
    for name, options in building.OPTIONS.items():
        lines += _settings(f"builder {name}", options, "builder.config", shown)
    return "\n".join(lines).rstrip() + "\n"


def _sections(first: Iterable[Section]) -> list[Section]:
    """The sections and those of the types in their fields, at any depth; a type in several places has one section."""
    found: dict[type, tuple[str, ...]] = {}

    def add(section: Section) -> None:
        found[section.described] = (*found.get(section.described, ()), *section.places)
        for row in rows(section.described):
            for part in _parts(row.hint):
                place = row.name if section.places == ("task",) else f"{section.places[0]}.{row.name}"
                add(Section(part, (f"{place}[]" if "list of" in row.type_words else place,)))

    for section in first:
        add(section)
    return [Section(described, places) for described, places in found.items()]


def _links(sections: Iterable[Section]) -> dict[str, str]:
    """The words for each type, by its name."""
    return {each.described.__name__: f"[object](#{anchor(each.heading)})" for each in sections}


def _section(section: Section, links: Mapping[str, str], level: str) -> Iterator[str]:
    yield from (f"{level} {section.heading}", "", _text(docstrings.of_class(section.described)), "")
    yield from _table(section, links)


def _table(section: Section, links: Mapping[str, str]) -> Iterator[str]:
    yield from TABLE
    for row in rows(section.described):
        yield _line(row, links)
    yield ""
    yield from _members(section.described)


def _members(described: type) -> Iterator[str]:
    """What the values of an enumeration mean, for those that have docstrings."""
    enums = {
        hint: None
        for row in rows(described)
        for hint in _inside(row.hint)
        if isinstance(hint, type) and issubclass(hint, Enum)
    }
    for enum in enums:
        if notes := docstrings.of_attributes(enum):
            names = ", ".join(f"`{row.name}`" for row in rows(described) if enum in _inside(row.hint))
            yield from (f"Values of {names}:", "")
            for member in enum:
                yield (
                    f"- `{member.value}`: {_text(notes[member.name])}"
                    if member.name in notes
                    else f"- `{member.value}`"
                )
            yield ""


def _line(row: Row, links: Mapping[str, str]) -> str:
    words = re.sub(r"\w+", lambda word: links.get(word[0], word[0]), row.type_words)
    cells = (f"`{row.name}`", words, _default(row.default), ", ".join(_bounds(row)), _text(row.meaning))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel | msgspec.Struct):
        return ""  # its own fields have theirs
    return f"`{json.dumps(msgspec.to_builtins(value))}`"


def _bounds(row: Row) -> Iterator[str]:
    for bound in row.bounds:
        values = {name: getattr(bound, name, None) for name in (*SIGNS, "min_length", "max_length", "pattern")}
        yield from (f"{sign} {values[name]:,}" for name, sign in SIGNS.items() if values[name] is not None)
        unit = "characters" if row.type_words.startswith("text") else "entries"
        if values["min_length"]:
            yield "not empty" if values["min_length"] == 1 else f"at least {values['min_length']:,} {unit}"
        if values["max_length"] is not None:
            yield f"at most {values['max_length']:,} {unit}"
        if values["pattern"] is not None:
            subject = "names match" if row.is_map else "matches"
            yield f"{subject} `{values['pattern']}`"


def rows(described: type) -> list[Row]:
    """The fields of a pydantic model or a msgspec struct, in order."""
    notes, hints = docstrings.of_attributes(described), typing.get_type_hints(described, include_extras=True)
    found = []
    for name, default in _defaults(described).items():
        bounds = [bound for hint in _inside(hints[name]) for bound in getattr(hint, "__metadata__", ())]
        if issubclass(described, BaseModel):
            declared = described.model_fields[name].metadata
            bounds = [*declared, *(bound for bound in bounds if bound not in declared)]
        described_there = next((text for bound in bounds if (text := getattr(bound, "description", None))), "")
        found.append(Row(name, hints[name], default, tuple(bounds), notes.get(name, described_there)))
    return found


def _defaults(described: type) -> dict[str, object]:
    if issubclass(described, BaseModel):
        return {name: info.get_default(call_default_factory=True) for name, info in described.model_fields.items()}
    assert issubclass(described, msgspec.Struct), "settings are models or structs"
    found: dict[str, object] = {}
    for each in msgspec.structs.fields(described):
        made = each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()
        found[each.name] = PydanticUndefined if made is msgspec.NODEFAULT else made
    return found


def _inside(hint: Any) -> list[Any]:
    """A type and all types that it is made of."""
    return [hint, *(each for argument in typing.get_args(hint) for each in _inside(argument))]


def _parts(hint: Any) -> list[type]:
    return [each for each in _inside(hint) if isinstance(each, type) and issubclass(each, BaseModel | msgspec.Struct)]


def _runtimes() -> Iterator[str]:
    yield from ("What each `runtime.backend` doesn't keep. A task that sets such a field is refused.", "")
    yield from ("| backend | refused fields of `runtime` |", "|---|---|")
    for name, fields in runtime.UNKEPT.items():
        yield f"| `{name}` | {', '.join(f'`{field}`' for field in fields)} |"
    yield from (
        "",
        "`apptainer` and `docker` need `image`. `process` keeps `network: host` alone.",
        "[images.md](images.md) and [security.md](security.md) say more.",
        "",
    )


def _plug_ins(kind: registry.Kind, word: str, place: str) -> Iterator[str]:
    for name in registry.names(kind):
        try:
            plug_in = registry.load(kind, name)
        except InputError:
            continue  # installed without what it needs
        settings = getattr(plug_in, "settings_type", None)
        if settings is not None and rows(settings):
            note = sys.modules[plug_in.__module__].__doc__
            yield from _settings(f"{word} {name}", settings, place, set(), note)
        else:
            yield from (f"### {word} {name}", "", "No settings.", "")


def _settings(heading: str, settings: type, place: str, shown: set[type], note: str | None = None) -> Iterator[str]:
    """A plug-in's settings, and the types in them that weren't `shown` yet."""
    first, *nested = _sections([Section(settings, (place,))])
    yield from (f"### {heading}", "")
    if note:
        yield from (_text(note.split("\n\n")[0]), "")
    links = _links(nested)
    yield from _table(first, links)
    for section in nested:
        if section.described not in shown:
            yield from _section(section, links, "####")
    shown.update(section.described for section in nested)


def _text(note: str) -> str:
    """A docstring for people who write YAML."""
    words = re.sub(r"\bNone\b", "null", " ".join(note.split()))
    return re.sub(r"docs/(\w+\.md)", r"[\1](\1)", words)


def anchor(heading: str) -> str:
    """The anchor that GitHub and other renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
