"""Sets of whole numbers, kept as sorted, disjoint intervals [start, end)."""

from __future__ import annotations

Interval = tuple[int, int]


def merge(intervals: list[Interval]) -> list[Interval]:
    """The same numbers in as few intervals as possible, sorted; intervals that touch become one."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def length(intervals: list[Interval]) -> int:
    """How many numbers the intervals hold."""
    return sum(end - start for start, end in merge(intervals))
