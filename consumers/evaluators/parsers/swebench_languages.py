"""The output of SWE-bench's test runs in JavaScript, Java, C, C++, PHP and Ruby, with the names that its lists of tests have.

`FORMS` has parsers of swebench 5.0.2 (`harness/log_parsers/`) under their own names: those of SWE-bench Multilingual, except
`parse_log_doctest`, whose output is an XML document. The last status of a name counts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from consumers.evaluators.parsers.output import NAME_LIMIT, SEPARATOR, Found

_STATUSES = {
    **dict.fromkeys(["ok", "PASS", "pass", "PASSED", "OK", "✓", "✔", ".", "SUCCESS", "passed"], "PASSED"),
    **dict.fromkeys(["err", "FAIL", "FAILED", "ERR", "✕", "×", "✖", "✘", "F", "E", "FAILURE", "failed", "not ok"], "FAILED"),
    **dict.fromkeys(["skip", "ignore", "○", "↓", "↩", "O"], "SKIPPED"),
}  # fmt: skip
_DURATION = re.compile(r"\s\(\d+\s*m?s\)$")
_VITEST_END = re.compile(r"\s(?:\d+\s*m?s?|\[skipped\])$")
_REDIS = re.compile(r"\[(ok|err|skip|ignore)\]:\s(.+)")
_JQ = re.compile(r"(PASS|FAIL):\s(.+)")
_MICROPYTHON = re.compile(r"(pass|FAIL|skip)\s+(.+)")
_GOOGLETEST = re.compile(r"\[\s*(OK|FAILED)\s*\]\s")
_ANT = re.compile(r"\[junit\]\s+\[(PASS|FAIL|ERR)\]\s+(.*)")
_JEST = re.compile(r"(✓|✕|○)\s(.+)")
_JEST_JSON = re.compile(r"\[(PASSED|FAILED)\]\s(.+)")
_VITEST = re.compile(r"(✓|×|↓)\s(.+)")
_TAP = re.compile(r"(ok|not ok) \d+ (.+)")
_KARMA = re.compile(r"(\s*)([✔✖])?\s(.*)")
_PHPUNIT = re.compile(r"\s*([✔✘↩])\s*(.*)")
_CUCUMBER = re.compile(r" (\.+)(F?)")
_RUBY_UNIT = re.compile(r":\s+(\.|[EFO]\b)")
_RUBY_UNIT_PREFIX = "test: "
_MAVEN_TEST = "-Dtest="
_MAVEN_RESULT = "BUILD "
_LEVELS = 100
"""Maximum depth of nested suites. Deeper suites get the name of the last one within the limit."""


def _lines(text: str) -> Iterator[str]:
    return map(str.strip, text.split("\n"))


def _by(pattern: re.Pattern[str], end: re.Pattern[str] | None = None) -> Callable[[str], Found]:
    """A parser of lines that are a status and a name, without what `end` finds at the name's end."""

    def read(text: str) -> Found:
        for line in _lines(text):
            if found := pattern.fullmatch(line):
                name = found[2]
                if end is not None and (extra := end.search(name, 1)):
                    name = name[: extra.start()]
                yield name, _STATUSES[found[1]]

    return read


def _jest(text: str) -> Found:
    for name, status in _by(_JEST, _DURATION)(text):
        yield name.strip(), status


def _redis(text: str) -> Found:
    """Behind the name of a failed test stands its file."""
    for name, status in _by(_REDIS, _DURATION)(text):
        words = name.rsplit(maxsplit=2) if status == "FAILED" and not name[-1].isspace() else ()
        yield (words[0] if len(words) == 3 and words[1] == "in" else name), status


def _googletest(text: str) -> Found:
    for line in _lines(text):
        before = line.rpartition(" (")[0] if line.endswith(")") else ""
        for found in deque(_GOOGLETEST.finditer(before), maxlen=1):
            yield before[found.end() :], _STATUSES[found[1]]


def _maven(text: str) -> Found:
    """Maven names no test that passes. Each test is a run of its own, and bash prints its command."""
    tests: deque[str] = deque()
    results: deque[str] = deque()
    for line in _lines(text):
        words = line.rpartition(_MAVEN_TEST)[2].split(maxsplit=1) if _MAVEN_TEST in line else ()
        if words:
            tests.append(words[0])
        result = line.rpartition(_MAVEN_RESULT)[2] if _MAVEN_RESULT in line else ""
        if result in ("SUCCESS", "FAILURE"):
            if tests:
                yield tests.popleft(), _STATUSES[result]
            else:
                results.append(result)
    for test, result in zip(tests, results, strict=False):
        yield test, _STATUSES[result]


def _gradle(text: str) -> Found:
    """A test and its status stand on one line, or other lines came between them."""
    begun: str | None = None
    for line in _lines(text):
        name, status = line[:-7], line[-6:]
        if status in ("PASSED", "FAILED") and len(name) > 1 and line[-7].isspace() and not line.startswith(">"):
            yield name, status
            begun = None
        elif (words := line.split(maxsplit=3)) and len(words) == 3 and words[1] == ">" and not line.startswith(">"):
            begun = line
        elif begun is not None and line in ("PASSED", "FAILED"):
            yield begun, line
            begun = None


def _karma(text: str) -> Found:
    """A suite's title is a line by itself; less indentation ends a suite."""
    suites: list[str] = []
    indent = -1
    is_started = False
    for line in text.split("\n"):
        if line.startswith("SUMMARY:"):
            return
        if "Starting browser" in line:
            is_started = True
            continue
        found = _KARMA.fullmatch(line) if is_started else None
        if found is None:
            continue
        space, mark, title = found.groups()
        above = f"{suites[-1]}{SEPARATOR}" if suites else ""
        if mark:
            yield f"{above}{title}", _STATUSES[mark]
        elif len(space) > indent and space:
            indent = len(space)
            if len(suites) < _LEVELS:
                suites.append(f"{above}{title}"[:NAME_LIMIT])
        elif 0 < len(space) < indent:
            indent = len(space)
            del suites[-1:]


def _phpunit(text: str) -> Found:
    suite = "None"  # swebench's name of no suite
    for line in text.split("\n"):
        title, opening, end = line.rpartition(" (")
        if opening and len(end) > 1 and end.endswith(")") and len(title) > 1 and re.match(r"\w", title):
            suite = title[:NAME_LIMIT]
        elif found := _PHPUNIT.fullmatch(line):
            yield f"{suite}{SEPARATOR}{found[2]}", _STATUSES[found[1]]


def _minitest(text: str) -> Found:
    """`Class#test. = 0.01 s = .`: the name ends before the last `. ` with a `=` behind it."""
    for line in _lines(text):
        outcome = max(line.rfind("."), line.rfind("F"), line.rfind("E"))
        name = line[: max(line.rfind("=", 0, max(outcome, 0)), 0)].rpartition(". ")[0]
        if name:
            yield name, _STATUSES[line[outcome]]


def _cucumber(text: str) -> Found:
    """`path:line ....F`: the last of the dots and letters counts."""
    for line in _lines(text):
        ends = (found for found in _CUCUMBER.finditer(line) if len(found[1]) > 1 or found[2])
        for found in deque(ends, maxlen=1):
            yield line[: found.start()], _STATUSES[found[2] or "."]


def _ruby_unit(text: str) -> Found:
    for line in _lines(text):
        for found in deque(_RUBY_UNIT.finditer(line, 1), maxlen=1):
            name = line[: found.start()]
            yield name.removeprefix(_RUBY_UNIT_PREFIX) or name, _STATUSES[found[1]]


def _rspec(text: str) -> Found:
    for line in _lines(text):
        at, status = max((line.rfind(f" - {each}"), each) for each in ("passed", "failed"))
        if at > 0:
            yield line[:at], _STATUSES[status]


FORMS: Mapping[str, Callable[[str], Found]] = {
    "parse_log_redis": _redis,
    "parse_log_jq": _by(_JQ),
    "parse_log_micropython_test": _by(_MICROPYTHON),
    "parse_log_googletest": _googletest,
    "parse_log_maven": _maven,
    "parse_log_ant": _by(_ANT),
    "parse_log_gradle_custom": _gradle,
    "parse_log_jest": _jest,
    "parse_log_jest_json": _by(_JEST_JSON),
    "parse_log_vitest": _by(_VITEST, _VITEST_END),
    "parse_log_tap": _by(_TAP),
    "parse_log_karma": _karma,
    "parse_log_phpunit": _phpunit,
    "parse_log_minitest": _minitest,
    "parse_log_cucumber": _cucumber,
    "parse_log_ruby_unit": _ruby_unit,
    "parse_log_rspec_transformed_json": _rspec,
}
