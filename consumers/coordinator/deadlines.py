"""How long each phase may last (protocol 11), and the queue of instants at which time alone changes something.

A row's deadline follows from the row and is never stored. It lies on one of two clocks: the partition's clock, which stands still while
Kafka is away, or the run clock, which also stands still while the fleet is paused (protocol 18).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from topics.contract.topic import DAY_MS
from topics.types.session import CLAIMED_STAGES, Phase, SessionState, Stage, TaskState

TICKET_MS = 10_000
"""An unclaimed ticket is released again after this time (protocol 9)."""
QUEUE_MS = 6 * DAY_MS
"""The retention of `polar.tasks` less a day: after that no record of the task would be left (protocol 10)."""
GRACE_MS = 60_000
"""Added to a budget, which the worker itself enforces: for killing, reporting, and a Kafka that was away for the worker alone."""
CLOSING_MS = 2_000
"""From `CloseKey` to `Build` if the harness isn't known to be dead (protocol 17)."""
BUILDING_MS = 60_000
"""After this time `Build` is written again."""
UNOPENED_MS = DAY_MS
"""From a task's first `session open`: samples that nobody has opened by then end, so that their group ends (protocol 28)."""
EXPIRY_MS = 8 * DAY_MS
"""After a group's end, or after the cancel of an unknown task: `polar.tasks` then holds the task no longer (protocol 32)."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """How long the fleet was paused, in ms of the partition's clock."""

    past_ms: int = 0
    """Sum of the pauses that have ended."""
    began: int | None = None
    """Clock at which the current pause began; None while the fleet runs."""

    def total_ms(self, now: int) -> int:
        return self.past_ms + (0 if self.began is None else now - self.began)

    def changed(self, paused: bool, now: int) -> Pauses:
        """The pauses after the fleet was paused or resumed at `now`."""
        return Pauses(self.total_ms(now), now if paused else None)


def deadline_of(session: SessionState, task: TaskState) -> int | None:
    """When the row's phase ends by itself, ms: on the run clock for a run, otherwise on the partition's. None for an ended session."""
    match session.phase:
        case Phase.QUEUED | Phase.READY | Phase.RAN:
            expires = session.since + QUEUE_MS
            released = session.ticket_released_at
            return expires if released is None else min(expires, released + TICKET_MS)
        case Phase.UNOPENED:
            return session.since + UNOPENED_MS
        case Phase.RUNNING:
            limit = _budget_ms(Stage.RUN, task) if session.ttl_ms is None else session.ttl_ms
            return session.since - session.paused_ms + limit
        case Phase.INIT | Phase.EVALUATING:
            return session.since + _budget_ms(CLAIMED_STAGES[session.phase], task)
        case Phase.CLOSING:
            return session.since + CLOSING_MS
        case Phase.BUILDING:
            return session.since + BUILDING_MS
        case Phase.ENDED:
            return None


def expires_at(task: TaskState) -> int | None:
    """Clock (ms) from which no input can name this task any more; None while one can."""
    ended = task.cancelled_at if task.body_hash is None else task.closed_at
    return None if ended is None else ended + EXPIRY_MS


def is_ticket_stale(session: SessionState, now: int) -> bool:
    """Whether this waiting session's newest ticket has been unclaimed for too long."""
    return session.ticket_released_at is not None and now >= session.ticket_released_at + TICKET_MS


def budget_s(stage: Stage, task: TaskState) -> float:
    """The stage's budget in seconds."""
    assert task.plan is not None, "a session's task is known"
    match stage:
        case Stage.INIT:
            return task.plan.init_budget_s
        case Stage.RUN:
            return task.plan.run_budget_s
        case Stage.EVALUATE:
            return task.plan.evaluate_budget_s


def _budget_ms(stage: Stage, task: TaskState) -> int:
    return round(budget_s(stage, task) * 1000) + GRACE_MS


class Instants:
    """A priority queue of ids by instant, on one clock. Entries that a row's change made void stay until they pass or are replaced."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: int, name: str) -> None:
        heapq.heappush(self._heap, (at, name))

    def pop_passed(self, now: int) -> list[str]:
        """Remove and return the ids whose instant has come."""
        passed: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            passed.append(heapq.heappop(self._heap)[1])
        return passed

    def replace(self, entries: Iterable[tuple[int, str]]) -> None:
        """Replace all entries."""
        self._heap = list(entries)
        heapq.heapify(self._heap)
