"""The output of `vitest run --reporter=verbose`. Names are `file > group > test`, as Vitest prints them: `src/sum.test.ts > sums > adds`.

The default reporter prints whole names only of tests that fail, so there the names of other lines are those of files.
"""

from __future__ import annotations

import re

from consumers.evaluators.parsers.output import Found, lines

_RESULT = re.compile(r" ([✓×❯↓□]) (\S.*)")
"""Behind one space. Deeper lines are those of the default reporter, which leaves out the groups."""
_STATUS = {"✓": "PASSED", "×": "FAILED", "❯": "FAILED", "↓": "SKIPPED", "□": "SKIPPED"}
_FAILED = re.compile(r" FAIL +(\S.*)")
"""In the list of failed tests and files."""
_DETAILS = re.compile(r" +\d+ms(?: \(retry x\d+\))?(?: \(repeat x\d+\))?(?: \d+ MB heap used)?$")
_TESTS = re.compile(r" \(\d+ tests?[ |\w]*\)$")
"""Behind a file."""
_END = 100
"""Characters. A search for the end of a line takes quadratic time in the length of what it looks at."""


def read(text: str) -> Found:
    for line in lines(text):
        if result := _RESULT.match(line):
            symbol, name = result[1], _without(_DETAILS, result[2])
            file = _without(_TESTS, name)
            if symbol != "❯" or file != name:  # otherwise a place in a failure's stack
                yield file, _STATUS[symbol]
        elif failed := _FAILED.match(line):
            # Behind a file stands its path: `sum.test.ts [ sum.test.ts ]`.
            file, _, path = failed[1].removesuffix(" ]").rpartition(" [ ")
            yield file if path and file.endswith(path) else failed[1], "FAILED"


def _without(end: re.Pattern[str], text: str) -> str:
    found = end.search(text, max(0, len(text) - _END))
    return text[: found.start()] if found else text
