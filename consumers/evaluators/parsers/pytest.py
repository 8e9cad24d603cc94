"""pytest's output (`-rA` or `-v`), and lines like `name: PASSED`.

Lines: `PASSED path::name`, `FAILED path::name - why`, `path::name PASSED [50%]`, `SKIPPED [1] path:line: why`.
"""

from __future__ import annotations

import re

from consumers.evaluators.parsers.output import Found, lines

_STATUS = "PASSED|FAILED|ERROR|SKIPPED"
_BEFORE = re.compile(rf"({_STATUS}) (?:\[\d+\] )?(?=\S)")
_AFTER = re.compile(rf" ({_STATUS})(?: +\([^()]*\))?(?: +\[ *\d+%\])?$")
_REASON = re.compile(r"(\S+:\d+): ")


def read(text: str) -> Found:
    for line in lines(text):
        stripped = line.strip()
        if match := _BEFORE.match(stripped):
            name = stripped[match.end() :].partition(" - ")[0]
            reason = _REASON.match(name)
            yield reason[1] if reason else name, match[1]
        elif match := _AFTER.search(stripped):
            yield stripped[: match.start()].rstrip().removesuffix(":"), match[1]
