"""How much came within the last minute, by the records' own times.

Invariant: whatever the order and the ages of what is added, memory is that of two minutes' seconds, and what lies outside the minute
that is asked for doesn't count.
"""

from __future__ import annotations

WINDOW_S = 60
SLOTS = 2 * WINDOW_S
"""Seconds kept: two that share a slot are further apart than a window, so the newer one may take it."""


class Minute:
    """A sliding sum over one-second slots."""

    def __init__(self) -> None:
        self._seconds = [0] * SLOTS
        """Unix seconds that the slots stand for."""
        self._amounts = [0] * SLOTS

    def add(self, at_ms: int, amount: int = 1) -> None:
        """Count what happened at `at_ms` (Unix ms)."""
        second = at_ms // 1000
        slot = second % SLOTS
        if second > self._seconds[slot]:
            self._seconds[slot], self._amounts[slot] = second, 0
        if second == self._seconds[slot]:
            self._amounts[slot] += amount

    def total(self, now_ms: int) -> int:
        """The sum over the 60 s that end with the second of `now_ms`."""
        newest = now_ms // 1000
        slots = zip(self._seconds, self._amounts, strict=True)
        return sum(amount for second, amount in slots if newest - WINDOW_S < second <= newest)
