"""Counts events of the last minute by the records' timestamps.

Invariant: memory is bounded by two minutes of one-second slots, and events outside the requested minute don't count, in whatever order
events are added.
"""

from __future__ import annotations

WINDOW_S = 60
SLOTS = 2 * WINDOW_S
"""Seconds kept. Two seconds of one slot are more than a window apart, so the newer one may replace the older."""


class Minute:
    """A sliding sum over one-second slots."""

    def __init__(self) -> None:
        self._seconds = [0] * SLOTS
        """The Unix second of each slot."""
        self._amounts = [0] * SLOTS

    def add(self, at_ms: int, amount: int = 1) -> None:
        """Add an amount at `at_ms` (Unix ms)."""
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
