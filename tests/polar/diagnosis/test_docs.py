"""docs/troubleshooting.md has the table of causes, word for word. A test that fails prints the rows that belong there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polar.diagnosis import calls, completed, failures, waiting
from polar.diagnosis.causes import Entry

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
PARTS = {
    "It waits, or runs": waiting.ENTRIES,
    "Its model calls fail": calls.ENTRIES,
    "It failed": failures.ENTRIES,
    "It completed": completed.ENTRIES,
}
"""Entries by the heading that they stand under."""


def shown(text: str) -> str:
    """A text with its placeholders in words: upper case in code, elsewhere italic."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"\{(\w+)\}", lambda found: f"*{found[1].replace('_', ' ')}*", part) for part in parts[::2]]
    parts[1::2] = [re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), part) for part in parts[1::2]]
    return "`".join(parts)


def row(entry: Entry) -> str:
    return f"| `{entry.cause}` | {shown(entry.sentence)} | {shown(entry.way_out)} |"


@pytest.mark.parametrize("heading", PARTS)
def test_each_part_of_the_table_stands_under_its_heading(heading: str) -> None:
    section = PAGE.read_text().partition(f"### {heading}\n")[2].partition("\n#")[0]
    there = [line for line in section.splitlines() if line.startswith("| `")]
    wanted = [row(entry) for entry in PARTS[heading]]
    assert there == wanted, "the page needs these rows:\n" + "\n".join(wanted)
