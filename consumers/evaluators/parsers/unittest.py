"""The output of `python -m unittest -v`. A test's name is `module.Class.method`, as `python -m unittest` takes it.

A test with failed subtests has their status; an expected failure is PASSED, and an unexpected success FAILED, as for the exit code.
"""

from __future__ import annotations

import re

from consumers.evaluators.parsers.output import Found, lines

_TEST = re.compile(r"(?:(FAIL|ERROR|UNEXPECTED SUCCESS): )?\s*(\w+) \(([\w.<>]+)\)")
"""`method (module.Class.method)`; before Python 3.11 `method (module.Class)`. In the list of failures behind the kind of failure."""
_STATUS = {
    "ok": "PASSED",
    "FAIL": "FAILED",
    "ERROR": "ERROR",
    "expected failure": "PASSED",
    "unexpected success": "FAILED",
    "UNEXPECTED SUCCESS": "FAILED",
}
_DOTS = " ... "


def read(text: str) -> Found:
    test = None
    for line in lines(text):
        end = line
        if found := _TEST.match(line):
            kind, method, place = found.groups()
            test = place if place.endswith(f".{method}") else f"{place}.{method}"
            end = kind or line
        # The status is on the line of the name or of the description, or on a line of its own, behind what the test prints. That can look
        # like a status, too, so all count until the next test.
        if test is not None and (status := _status(end)):
            yield test, status


def _status(line: str) -> str | None:
    if f"{_DOTS}skipped" in line:
        return "SKIPPED"
    return _STATUS.get(line.rpartition(_DOTS)[2])
