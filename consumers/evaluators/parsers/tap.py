"""The Test Anything Protocol, versions 12 to 14: `ok 1 - name`, `not ok 2 - name # SKIP why`. Other lines of the output are skipped.

A subtest's name is `parent > name` if a comment `# Subtest: parent` comes before it, as in the output of node and Perl. A test without a
description has its number as its name. A test that is to be done (`# TODO`) is SKIPPED.
"""

from __future__ import annotations

import re

from consumers.evaluators.parsers.output import Found, Titles, lines

INDENT = 4
"""Spaces before a subtest, for each level."""
_POINT = re.compile(r"(not )?ok\b *(\d*)(?: +- | +|$)(.*)")
_SUBTEST = "# Subtest: "
_DIRECTIVE = re.compile(r"(?:^|(?<=\s))# ?(?:skip|todo)", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([\\#])")


def read(text: str) -> Found:
    titles = Titles()
    diagnostics: int | None = None
    """Spaces before the lines of a test's diagnostics, which may hold any text; None outside of them."""
    for line in lines(text):
        content = line.lstrip(" ")
        spaces = len(line) - len(content)
        if diagnostics is not None and spaces >= diagnostics:
            if spaces == diagnostics and content == "...":
                diagnostics = None
            continue
        diagnostics = spaces if content == "---" and spaces % INDENT == 2 else None
        if spaces % INDENT:
            continue
        level = spaces // INDENT
        if content.startswith(_SUBTEST):
            titles.enter(level, _unescaped(content.removeprefix(_SUBTEST)))
        elif point := _POINT.match(content):
            failed, number, description = point.groups()
            directive = _DIRECTIVE.search(description)
            name = description[: directive.start()] if directive else description
            name = _unescaped(name.strip()) or number
            titles.leave(level)
            if name:
                yield titles.path(level, name), "SKIPPED" if directive else "FAILED" if failed else "PASSED"


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)
