"""The output of `jest --verbose`. Names are `file > group > test`, and `file` for the whole file: `src/sum.test.js > sums > adds`.

Without `--verbose` Jest lists the tests only if it runs one file; otherwise the names are those of files. A failed file has FAILED, also if
none of its tests could run.
"""

from __future__ import annotations

import re

from consumers.evaluators.parsers.output import Found, Titles, lines

_FILE = re.compile(r"(PASS|FAIL) +(\S.*)")
_STATUS = {"✓": "PASSED", "✕": "FAILED", "○": "SKIPPED", "✎": "SKIPPED"}
_WORD = {"○": "skipped ", "✎": "todo "}
_DETAILS = re.compile(r"(?: \([\d.]+ m?s\))?(?: \([\d.]+ MB heap size\))?$")
"""The time behind a test, the time and the memory behind a file."""
_DETAILS_LIMIT = 100
"""Characters. A search for the end of a line takes quadratic time in the length of what it looks at."""


def read(text: str) -> Found:
    titles, is_list = Titles(), False
    for line in lines(text):
        if file := _FILE.match(line):
            # A project's name stands before the path, between two spaces.
            path = _undetailed(file[2]).rpartition("  ")[2].removeprefix("./")
            yield path, "PASSED" if file[1] == "PASS" else "FAILED"
            titles.enter(0, path)
            is_list = True
            continue
        title = line.lstrip(" ")
        level = (len(line) - len(title)) // 2
        if title.startswith("● "):
            is_list = False  # the failures' messages
        if not is_list or not level:
            continue
        symbol, _, name = title.partition(" ")
        if symbol in _STATUS:
            yield titles.path(level, _undetailed(name.removeprefix(_WORD.get(symbol, "")))), _STATUS[symbol]
        else:
            titles.enter(level, title)


def _undetailed(text: str) -> str:
    details = _DETAILS.search(text, max(0, len(text) - _DETAILS_LIMIT))
    assert details is not None, "it matches the empty end"
    return text[: details.start()]
