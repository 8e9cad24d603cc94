"""How long each state may last (protocol 11), and the instants at which time alone changes something.

A deadline is a property of its row, never stored beside it. It is told on one of two clocks: the partition's, which stands still while
Kafka is away, and, for a run, the run clock, which stands still while the fleet is paused, too (protocol 18).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from consumers.coordinator.phases import HAND
from topics.contract.topic import DAY_MS
from topics.types.session import Phase, SessionState, Stage, TaskState

TICKET_MS = 10_000
"""A ticket unclaimed for so long is released again (protocol 9)."""
QUEUE_MS = 6 * DAY_MS
"""The retention of `polar.tasks` less a day: then nobody would know the task any more (protocol 10)."""
GRACE_MS = 60_000
"""On top of a budget, which the worker itself keeps: for killing, reporting, and a Kafka that was away for the worker alone."""
CLOSING_MS = 2_000
"""From `CloseKey` to `Build` where the harness isn't known to be dead (protocol 17)."""
BUILDING_MS = 60_000
"""Then `Build` is written again."""
UNOPENED_MS = DAY_MS
"""From a task's first `session open`: samples that nobody has opened by then end, so that the group does (protocol 28)."""
EXPIRY_MS = 8 * DAY_MS
"""After a group's end, or the cancel of a task that nobody knows: `polar.tasks` has then forgotten the task (protocol 32)."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """How much of the partition's clock the fleet was paused. Times in ms."""

    past_ms: int = 0
    """The pauses that are over."""
    began: int | None = None
    """Clock: when the one that goes on began; None: the fleet runs."""

    def total_ms(self, now: int) -> int:
        return self.past_ms + (0 if self.began is None else now - self.began)

    def turned(self, paused: bool, now: int) -> Pauses:
        """The fleet is paused at `now`, or goes on."""
        return Pauses(self.total_ms(now), now if paused else None)


def deadline_of(session: SessionState, task: TaskState) -> int | None:
    """When this row's state must change by itself, ms; None for an ended one. On the run clock for a run, else on the partition's."""
    match session.phase:
        case Phase.QUEUED | Phase.READY | Phase.RAN:
            expires = session.since + QUEUE_MS
            return (
                expires if session.ticket_released_at is None else min(expires, session.ticket_released_at + TICKET_MS)
            )
        case Phase.UNOPENED:
            return session.since + UNOPENED_MS
        case Phase.RUNNING:
            limit = _budget_ms(Stage.RUN, task) if session.ttl_ms is None else session.ttl_ms
            return session.since - session.paused_ms + limit
        case Phase.INIT | Phase.EVALUATING:
            return session.since + _budget_ms(HAND[session.phase], task)
        case Phase.CLOSING:
            return session.since + CLOSING_MS
        case Phase.BUILDING:
            return session.since + BUILDING_MS
        case Phase.ENDED:
            return None


def expires_at(task: TaskState) -> int | None:
    """Clock (ms) from which nothing can ask for this task any more; None while more may come of it."""
    over = task.cancelled_at if task.body_hash is None else task.closed_at
    return None if over is None else over + EXPIRY_MS


def is_ticket_stale(session: SessionState, now: int) -> bool:
    """Whether this waiting session's newest ticket has gone unclaimed for too long."""
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
    """Ids by instant, on one clock. Entries that their rows' changes have voided stay until they are passed, or replaced."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: int, name: str) -> None:
        heapq.heappush(self._heap, (at, name))

    def passed(self, now: int) -> list[str]:
        """Takes out the ids whose instant has come."""
        passed: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            passed.append(heapq.heappop(self._heap)[1])
        return passed

    def replace(self, entries: Iterable[tuple[int, str]]) -> None:
        """These instead of all."""
        self._heap = list(entries)
        heapq.heapify(self._heap)
