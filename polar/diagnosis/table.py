"""The table of all causes, and what it says of facts."""

from __future__ import annotations

from dataclasses import dataclass

from polar.diagnosis import calls, completed, failures, waiting
from polar.diagnosis.causes import Cause, Entry
from polar.diagnosis.facts import Facts

TABLE: tuple[Entry, ...] = (*waiting.ENTRIES, *calls.ENTRIES, *failures.ENTRIES, *completed.ENTRIES)
"""In the order in which causes are given: what stops the whole system comes first."""


@dataclass(frozen=True)
class Finding:
    """A cause that holds, in words."""

    cause: Cause
    sentence: str
    way_out: str


def diagnose(facts: Facts) -> list[Finding]:
    """All causes that hold, or the general one if no other does; never empty."""
    holding = [entry for entry in TABLE if entry.holds(facts)]
    chosen = [entry for entry in holding if not entry.is_general] or holding[:1]
    assert chosen, "each phase and each end has a general cause"
    words = facts.words()
    return [Finding(entry.cause, entry.sentence.format_map(words), entry.way_out.format_map(words)) for entry in chosen]
