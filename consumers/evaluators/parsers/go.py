"""The output of `go test -v` and of `go test -json`. A test's name is the function's, with its subtests': `TestSum/negative_numbers`.

The package isn't part of the name: a test of the same name in several packages has the worst of its statuses.
"""

from __future__ import annotations

import json
import re

from consumers.evaluators.parsers.output import Found, lines

_STATUS = {"PASS": "PASSED", "FAIL": "FAILED", "SKIP": "SKIPPED"}
_RESULT = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)$")
"""Behind whatever the test printed without an end of line."""


def read(text: str) -> Found:
    for line in lines(text):
        if line.startswith("{"):
            yield from _event(line)
        elif result := _RESULT.search(line):
            yield result[2], _STATUS[result[1]]


def _event(line: str) -> Found:
    """The result in an event of `go tool test2json`. Events of a package name no test."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    action, test = event.get("Action"), event.get("Test")
    if isinstance(action, str) and isinstance(test, str) and action.upper() in _STATUS:
        yield test, _STATUS[action.upper()]
