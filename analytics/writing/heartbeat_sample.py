"""Chooses the heartbeats that get a row: one a minute of each process, and each that differs from the one before.

A process sends a heartbeat every 2 s, and more while its slots change. All of them would be most of the lake's rows, and a flush each
second on an idle system. A minute begins at the same time for all processes, so that their rows are written together.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.workers import Heartbeat

MINUTE_MS = 60_000
FORGOTTEN_MINUTES = 10
"""A process that was silent for so long has ended: each start of a process has an id of its own."""


class _Kept(NamedTuple):
    """The last heartbeat of a process that got a row."""

    minute: int
    description: tuple[object, ...]


class HeartbeatSample:
    """The rows so far, in log order."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._minute = 0

    def takes(self, beat: Heartbeat, at_ms: int) -> bool:
        """Whether the next heartbeat of the log, with its timestamp in Unix ms, gets a row."""
        made = _Kept(at_ms // MINUTE_MS, _description(beat))
        if made == self._kept.get(beat.worker_id):
            return False
        if made.minute > self._minute:
            self._minute = made.minute
            self._kept = {
                one: kept for one, kept in self._kept.items() if made.minute - kept.minute < FORGOTTEN_MINUTES
            }
        self._kept[beat.worker_id] = made
        return True


def _description(beat: Heartbeat) -> tuple[object, ...]:
    """The parts of a heartbeat that rarely change; free slots and calls in flight change at each step of a session."""
    slots = tuple((one.stage, one.pool, one.slots) for one in beat.stages)
    return beat.role, beat.address, beat.leaving, beat.obstacle, slots
