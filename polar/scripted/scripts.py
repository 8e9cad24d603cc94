"""Scripts: hand-written answers of the scripted engine. `README.md` beside this file describes the format.

A script applies to conversations whose opening it matches. Each of its variants is one course of the conversation. A session uses one
variant; the number of its assistant turns so far determines the next turn.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import yaml
from msgspec import Meta

from polar.scripted.conversation import Call, Turn
from polar.scripted.faults import Fault, Seconds

SUFFIXES: Final = (".yaml", ".yml", ".json")
_SAMPLE: Final = re.compile(r".*\.(\d+)", re.DOTALL)


class ScriptError(ValueError):
    """A scripts file is invalid; the message names the file, the field and its value."""


class ScriptCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] | str = {}
    """A mapping is sampled as compact JSON, as most harnesses repeat it; a string is sampled unchanged."""

    def as_call(self) -> Call:
        """The call with its arguments as sampled."""
        if isinstance(self.arguments, str):
            return Call(self.name, self.arguments)
        return Call(self.name, json.dumps(self.arguments, ensure_ascii=False, separators=(",", ":")))


class ScriptTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptCall, ...] = ()
    delay_s: Seconds = 0.0
    """Time until the answer."""
    fault: Fault | None = None
    """Injected into the first `times` calls of a session for this turn."""
    instead: tuple[tuple["ScriptTurn", ...], ...] = msgspec.field(name="or", default=())
    """Alternatives, each a list of turns, possibly empty, that may replace this turn."""

    def as_turn(self) -> Turn:
        return Turn("assistant", self.text, self.reasoning, tuple(call.as_call() for call in self.calls))


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One course of a conversation: a turn per answer, drawn at random if it has alternatives."""

    turns: Annotated[tuple[ScriptTurn, ...], Meta(min_length=1)]
    name: str = ""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answers to one kind of prompt."""

    name: Annotated[str, Meta(min_length=1)]
    match: str
    """A regular expression, searched for in the user's messages before the first answer."""
    variants: Annotated[tuple[Variant, ...], Meta(min_length=1)]
    system: str = ""
    """A regular expression, searched for in the system and developer messages before the first answer. It distinguishes side
    requests and sub-agents."""

    def fits(self, turns: Sequence[Turn]) -> bool:
        return bool(
            re.search(self.match, _opening(turns, "user"))
            and re.search(self.system, _opening(turns, "system", "developer"))
        )


@dataclass(frozen=True, slots=True)
class Cue:
    """A script's next turn for a conversation."""

    turn: ScriptTurn
    name: str
    """`script/variant/turn`; variants, and turns as the session gets them, count from 0."""


def choose(scripts: Sequence[Script], turns: Sequence[Turn], session: str | None, seed: int) -> Cue | None:
    """The next turn of the first script that fits; None if none fits or the variant has ended.

    If `session` ends in `.<index>`, the variant's number is index + seed (modulo): the samples of a task use the variants in turn.
    Otherwise the variant follows from a hash of seed and session (or, without a session, the opening). For each turn with alternatives,
    a hash also selects the turn or one of its alternatives.
    """
    script = next((script for script in scripts if script.fits(turns)), None)
    if script is None:
        return None
    key = f"{seed}:{session or _opening(turns, 'user')}"
    sample = _SAMPLE.fullmatch(session or "")
    number = int(sample[1]) + seed if sample else _hash(key)
    variant_number = number % len(script.variants)
    played = _drawn(script.variants[variant_number].turns, key)
    turn_number = _answers(turns)
    if turn_number >= len(played):
        return None
    return Cue(played[turn_number], f"{script.name}/{variant_number}/{turn_number}")


def _drawn(turns: Sequence[ScriptTurn], key: str) -> list[ScriptTurn]:
    """The turns for this key: each turn or one of its alternatives, with equal probability."""
    played = []
    for number, turn in enumerate(turns):
        here = f"{key}/{number}"
        way = _hash(here) % (1 + len(turn.instead))
        played += [turn] if way == 0 else _drawn(turn.instead[way - 1], f"{here}/{way}")
    return played


def _opening(turns: Sequence[Turn], *roles: str) -> str:
    """The messages of these roles before the first answer."""
    before = takewhile(lambda turn: turn.role != "assistant", turns)
    return "\n".join(turn.text for turn in before if turn.role in roles)


def _answers(turns: Sequence[Turn]) -> int:
    """The number of assistant turns. Adjacent assistant messages count once, since some clients separate text from calls."""
    roles = [None, *(turn.role for turn in turns)]
    return sum(role == "assistant" != before for before, role in pairwise(roles))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def load(paths: Iterable[Path]) -> list[Script]:
    """The scripts of files, and of folders' YAML and JSON files by name, in the order of `paths`.

    Raises ScriptError for a missing path, a folder without scripts, and an invalid script.
    """
    return [script for path in paths for file in _files(path) for script in _read(file)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise ScriptError(f"{path}: no scripts in this folder; a script's file ends in {', '.join(SUFFIXES)}")
        return files
    if not path.is_file():
        raise ScriptError(f"{path}: no such file or folder")
    return [path]


def _read(file: Path) -> list[Script]:
    try:
        documents = list(yaml.safe_load_all(file.read_text("utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ScriptError(f"{file}: not readable as YAML: {error}") from error
    if not documents:
        raise ScriptError(f"{file}: contains no script")
    return [_script(file, document) for document in documents]


def _script(file: Path, document: object) -> Script:
    try:
        script = msgspec.convert(document, Script)
    except msgspec.ValidationError as error:
        raise ScriptError(f"{file}: {_with_value(str(error), document)}") from error
    for field, pattern in (("match", script.match), ("system", script.system)):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ScriptError(f"{file}: `$.{field}` is not a regular expression: {pattern!r}: {error}") from error
    try:
        for turn in (turn for variant in script.variants for turn in _written(variant.turns)):
            turn.as_turn()
    except (TypeError, ValueError) as error:
        raise ScriptError(
            f"{file}: arguments of a call aren't JSON: {error}; quote dates and similar values"
        ) from error
    return script


def _written(turns: Iterable[ScriptTurn]) -> Iterator[ScriptTurn]:
    """All turns of a script, including alternatives."""
    for turn in turns:
        yield turn
        for way in turn.instead:
            yield from _written(way)


def _with_value(message: str, document: object) -> str:
    """A validation message, which ends in "at `$.a[0].b`", with the document's value at that path."""
    _, _, path = message.partition(" - at ")
    value: Any = document
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        value = value[key] if key else value[int(index)]
    shown = repr(value)
    return f"{message}; it has {shown if len(shown) <= 100 else shown[:100] + '…'}"
