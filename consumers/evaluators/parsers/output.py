"""The output of a test runner, as all parsers read it. The tested code prints into the same output, so every parser takes linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator

Found = Iterator[tuple[str, str]]
"""Names of tests, each with one of `junit.SEVERITY`, in the order of the output; a name may come more than once."""

NAME_LIMIT = 1000
"""Characters of a test's name; a longer one is cut."""
SEPARATOR = " > "
"""Between the parts of a name: file, groups, test. Vitest prints it."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"[^\r\n]+")


def lines(text: str) -> Iterator[str]:
    """The lines without colours; empty ones are left out."""
    return (line[0] for line in _LINE.finditer(_COLOUR.sub("", text)))


class Titles:
    """Titles of the groups around a test: the last one of each level, down to the test's own."""

    LEVELS = 100

    def __init__(self) -> None:
        self._paths: list[str] = []

    def enter(self, level: int, title: str) -> None:
        """Begin a group. Groups of its level and of deeper ones have ended."""
        path = self.path(level, title)
        if level < self.LEVELS:
            self.leave(level)
            self._paths += [self._paths[-1] if self._paths else ""] * (level - len(self._paths))
            self._paths.append(path)

    def leave(self, level: int) -> None:
        """End the groups of this level and of deeper ones."""
        del self._paths[level:]

    def path(self, level: int, name: str) -> str:
        """The whole name of a test or group. Its length is bounded, or many tests below a long title would take quadratic time."""
        above = self._paths[min(level, len(self._paths)) - 1] if level and self._paths else ""
        return (f"{above}{SEPARATOR}{name}" if above else name)[:NAME_LIMIT]
