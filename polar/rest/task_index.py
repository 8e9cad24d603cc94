"""Tasks by their last change, so that a list costs what it shows and not what the table holds.

A group holds the tasks of one harness and status. It is a sorted list, kept as rows change: a list of newest tasks merges the ends of
few groups. A change costs two binary searches and moves the entries after it, which are few, because tasks that change were new before.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from polar.table import SessionTable

RUNNING = "running"
COMPLETED = "completed"


class Place(NamedTuple):
    """Where a task stands in a list; later places are listed first."""

    updated_ms: int
    """Unix ms of the last change of the task or of one of its sessions."""
    task_id: str


class _Group(NamedTuple):
    harness: str | None
    status: str


@dataclass(slots=True)
class _Entry:
    place: Place
    group: _Group
    pending: int
    """Sessions that haven't ended."""


class TaskIndex:
    """An index of all tasks of a table that a coordinator has shown."""

    def __init__(self, table: SessionTable) -> None:
        """`table` is complete: each task is placed once, and later changes come by `update`."""
        self.pending_sessions = 0
        """Sessions of all tasks that haven't ended."""
        self._table = table
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[_Group, list[Place]] = {}
        for task_id in table.tasks:
            if (entry := self._entry(task_id)) is not None:
                self._entries[task_id] = entry
                self._groups.setdefault(entry.group, []).append(entry.place)
                self.pending_sessions += entry.pending
        for places in self._groups.values():
            places.sort()

    def update(self, task_id: str) -> None:
        """A row of the task was written or deleted."""
        known = self._entries.pop(task_id, None)
        if known is not None:
            self.pending_sessions -= known.pending
            places = self._groups[known.group]
            del places[bisect_left(places, known.place)]
            if not places:
                del self._groups[known.group]
        if (entry := self._entry(task_id)) is not None:
            self._entries[task_id] = entry
            self.pending_sessions += entry.pending
            insort(self._groups.setdefault(entry.group, []), entry.place)

    def counts(self) -> dict[str, int]:
        """Number of tasks by status."""
        found = Counter({RUNNING: 0, COMPLETED: 0})
        for group, places in self._groups.items():
            found[group.status] += len(places)
        return dict(found)

    def newest(self, *, before: Place | None = None, status: str = "", harness: str = "") -> Iterator[Place]:
        """Places in falling order, below `before`, of tasks with the status and the harness; empty: any. Valid until the next change."""
        chosen = [
            _falling(places, before)
            for group, places in self._groups.items()
            if status in ("", group.status) and harness in ("", group.harness)
        ]
        return heapq.merge(*chosen, reverse=True)

    def _entry(self, task_id: str) -> _Entry | None:
        task = self._table.tasks.get(task_id)
        if task is None or task.body_hash is None:
            return None
        status = COMPLETED if self._table.is_finished(task_id) else RUNNING
        group = _Group(None if task.plan is None else task.plan.harness, status)
        return _Entry(
            Place(self._table.changed_ms(task_id), task_id), group, task.num_samples - self._table.ended_count(task_id)
        )


def _falling(places: list[Place], before: Place | None) -> Iterator[Place]:
    end = len(places) if before is None else bisect_left(places, before)
    return (places[index] for index in range(end - 1, -1, -1))
