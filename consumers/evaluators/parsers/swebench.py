"""The output of the test runs of SWE-bench and SWE-Gym, with the names that their FAIL_TO_PASS and PASS_TO_PASS have.

`FORMS` has the parsers of swebench 5.0.2 (`harness/log_parsers/`) for Python, Go and Rust under their own names, and the one that SWE-Gym
has for pydantic. They differ from Polar's own parsers in what is part of a name: SWE-bench cuts some names at their first space, and its
lists have the cut names. The last status of a name counts, and XFAIL is reported as PASSED, since both grade equally there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from consumers.evaluators.parsers.output import Found

_STATUSES = {"FAILED": "FAILED", "PASSED": "PASSED", "SKIPPED": "SKIPPED", "ERROR": "ERROR", "XFAIL": "PASSED"}
_COUNT = re.compile(r"\[\d+\]")
"""Behind SKIPPED: how many tests were skipped at one place, which names none of them."""
_SHARE = re.compile(r"FAILED\s*\[[^\][]*\]")
"""`FAILED [ 50%]`: how much of the run is done. No `[` within: the search from each `FAILED[` ends at the next one."""
_GO = re.compile(r"--- (PASS|FAIL|SKIP): (.+) \([^()]+\)")
_CARGO = re.compile(r"test\s+(\S+)\s+\.\.\.\s+(\w+)")
_COLOUR = re.compile(r"\[\d+m")
_CONTROL = dict.fromkeys(range(1, 32))
_OUTCOMES = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED", "ok": "PASSED", "FAILED": "FAILED"}
_MOUSE_BUTTONS = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}
_SYMPY = {"E": "ERROR", "F": "FAILED", "ok": "PASSED"}
_DJANGO_OK = (" ... ok", " ... OK", " ...  OK")
_DJANGO_MIGRATION = "Applying sites.0002_alter_domain_unique...test_no_migrations"
_DJANGO_VERSION = "--version is equivalent to version"


def _pytest(text: str) -> Found:
    for words in _summary(text):
        yield words[1], _STATUSES[words[0]]


def _summary(text: str) -> Iterator[list[str]]:
    """The words of lines like `PASSED path::name`."""
    for line in text.split("\n"):
        words = line.split()
        if len(words) > 1 and line.startswith(words[0]) and words[0] in _STATUSES and not _is_count(words):
            yield words


def _is_count(words: list[str]) -> bool:
    return words[0] == "SKIPPED" and _COUNT.fullmatch(words[1]) is not None


def _pytest_options(text: str) -> Found:
    """Of a parameter that is a path, its last part counts."""
    for name, status in _pytest(text):
        main, bracket, end = name.partition("[")
        option, closing, _ = end.rpartition("]")
        if not bracket or not closing:
            yield name, status
            continue
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            option = f"/{option.rpartition('/')[2]}"
        yield f"{main}[{option}]", status


def _pytest_v2(text: str) -> Found:
    """Names keep their spaces. Older versions of pytest print the status behind the name."""
    for line in _plain(text):
        before = line.partition(" - ")[0] if line.startswith("FAILED") else line
        words = before.split()
        if len(words) < 2:
            continue
        if line.startswith(words[0]) and words[0] in _STATUSES:
            if not _is_count(words):
                yield " ".join(words[1:]), _STATUSES[words[0]]
        elif words[-1] in _STATUSES and line.endswith(words[-1]):
            yield " ".join(words[:-1]), _STATUSES[words[-1]]


def _pydantic(text: str) -> Found:
    for whole in _plain(text):
        line = _SHARE.sub("FAILED", whole)
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(words[0]) and words[0] in _STATUSES:
            yield words[1], _STATUSES[words[0]]
        elif line.endswith(words[-1]) and words[-1] in _STATUSES and words[1] in _STATUSES:
            yield words[0], _STATUSES[words[1]]


def _plain(text: str) -> Iterator[str]:
    return (_COLOUR.sub("", line).translate(_CONTROL) for line in text.split("\n"))


def _matplotlib(text: str) -> Found:
    for old, new in _MOUSE_BUTTONS.items():
        text = text.replace(old, new)
    return _pytest(text)


def _seaborn(text: str) -> Found:
    for line in text.split("\n"):
        words = line.split()
        if len(words) < 2:
            continue
        if line.startswith(("FAILED", "PASSED")) and " PASSED " not in line:
            yield words[1], _STATUSES[line[:6]]
        elif words[1] == "PASSED" and " PASSED " in line:
            yield words[0], "PASSED"


def _django(text: str) -> Found:
    previous: str | None = None
    """The last test that was begun: Django may print between its name and its `ok`."""
    for line in map(str.strip, text.split("\n")):
        if _DJANGO_VERSION in line:
            yield _DJANGO_VERSION, "PASSED"
        name, dots, _ = line.partition(" ... ")
        if dots:
            previous = name
        for suffix in _DJANGO_OK:
            if line.endswith(suffix):
                shown = line.partition("...")[2].strip() if line.startswith(_DJANGO_MIGRATION) else line
                yield shown.removesuffix(suffix), "PASSED"
                break
        if " ... skipped" in line:
            yield line.partition(" ... skipped")[0], "SKIPPED"
        for word, status in (("FAIL", "FAILED"), ("ERROR", "ERROR")):
            if line.endswith(f" ... {word}"):
                yield line.partition(f" ... {word}")[0], status
            if line.startswith(f"{word}:") and len(words := line.split()) > 1:
                yield words[1], status
        if line.startswith("ok") and previous is not None:
            yield previous, "PASSED"


def _sympy(text: str) -> Found:
    lines = text.split("\n")
    for line in lines:
        # `_____ sympy/core/tests/test_a.py:test_b _____`
        title = line.strip("_")
        file, suffix, test = title[1:-1].rpartition(".py:")
        if suffix and title[0] == title[-1] == " ":
            yield f"{file}{suffix}{test}", "FAILED"
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0].startswith("test_") and words[-1] in _SYMPY:
            yield words[0], _SYMPY[words[-1]]


def _gotest(text: str) -> Found:
    for line in text.split("\n"):
        if found := _GO.fullmatch(line.strip()):
            yield found[2], _OUTCOMES[found[1]]


def _cargo(text: str) -> Found:
    for line in text.split("\n"):
        if (found := _CARGO.fullmatch(line.strip())) and found[2] in ("ok", "FAILED"):
            yield found[1], _OUTCOMES[found[2]]


FORMS: Mapping[str, Callable[[str], Found]] = {
    **dict.fromkeys(
        [
            *("parse_log_pytest", "parse_log_astroid", "parse_log_flask", "parse_log_marshmallow", "parse_log_pvlib"),
            *("parse_log_pyvista", "parse_log_sqlfluff", "parse_log_xarray"),
        ],
        _pytest,
    ),
    **dict.fromkeys(
        ["parse_log_pytest_options", "parse_log_pydicom", "parse_log_requests", "parse_log_pylint"], _pytest_options
    ),
    **dict.fromkeys(["parse_log_pytest_v2", "parse_log_astropy", "parse_log_scikit", "parse_log_sphinx"], _pytest_v2),
    "parse_log_pytest_pydantic": _pydantic,
    "parse_log_matplotlib": _matplotlib,
    "parse_log_seaborn": _seaborn,
    "parse_log_django": _django,
    "parse_log_sympy": _sympy,
    "parse_log_gotest": _gotest,
    "parse_log_cargo": _cargo,
}
