"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How one thing stands."""

    GOOD = "good"
    LATER = "later"
    """Nothing is broken: it isn't there yet, such as a download of the first use, or it can't be told now."""
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """The result of one check: its subject, its state, the observation, and the remedy if the state isn't good."""

    what: str
    state: State
    said: str
    todo: str | None = None
