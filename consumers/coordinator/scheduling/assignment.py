"""Assigns a pool's free slots to the requests of all partitions: a pure function.

Limits belong to a pool and so to all partitions, while `decide` sees one partition; `assign` stands between the two.

No ticket is sent ahead of a free slot, because a ticket of a low priority would lie on the queue before a later, more urgent one. INIT
tickets are sent only while the pool's staged sessions are within `ready_limit` (`StagingLimit`), so that sandboxes don't pile up before
the run slots.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from consumers.coordinator.commands import SlotAssigned
from topics.types.session import Stage

StagePool = tuple[Stage, str]
"""A stage and a pool."""


@dataclass(frozen=True)
class WorkerSlots:
    """Free slots of one worker's stage, and the queue partitions that the worker reads."""

    worker_id: str
    stage: Stage
    pool: str
    partitions: tuple[int, ...]
    slots: int


class SlotRequest(NamedTuple):
    """Sessions of one partition that request a slot."""

    partition: int
    stage: Stage
    pool: str
    priority: int
    user: str
    sessions: int


@dataclass(frozen=True)
class Assignment:
    """A slot for one partition of `polar.events`."""

    partition: int
    slot: SlotAssigned


@dataclass(frozen=True)
class StagingLimit:
    """How many sessions of a pool may be staged.

    Staged sessions of a lower priority don't count against a higher priority, which must not wait until they have run. `total` limits
    the sum over all priorities.
    """

    limit: int
    """The pool's `ready_limit`, or this coordinator's share of it."""
    total: int
    """The pool's `ready_limit` plus its INIT slots, less what other coordinators have staged."""
    staged: Mapping[int, int]
    """This coordinator's staged sessions by priority."""

    def remaining(self, priority: int) -> int:
        """How many more sessions of this priority may be staged; may be negative."""
        rivals = sum(sessions for staged_priority, sessions in self.staged.items() if staged_priority >= priority)
        return min(self.limit - rivals, self.total - sum(self.staged.values()))


@dataclass(frozen=True)
class Limits:
    """The limits of a round besides free slots and requests."""

    active: Mapping[StagePool, Mapping[str, int]]
    """Active sessions by user."""
    shares: Mapping[StagePool, int]
    """How many more slots this coordinator may use; a missing key means no limit."""
    staging: Mapping[str, StagingLimit]
    """By pool."""


def assign(free: Sequence[WorkerSlots], requests: Iterable[SlotRequest], limits: Limits) -> list[Assignment]:
    """Distribute free slots among the requests of all partitions.

    The highest priority is served first. Within a priority the user with the fewest active sessions is next. Equal users, and the
    partitions of one user, take turns in the order of `requests`. Workers take turns to spread the load. A worker's slots rotate over
    its queue partitions, so that the retry of an unclaimed ticket goes to another partition.
    """
    grouped: dict[StagePool, dict[int, list[SlotRequest]]] = {}
    for request in requests:
        grouped.setdefault((request.stage, request.pool), {}).setdefault(request.priority, []).append(request)
    assigned: list[Assignment] = []
    for key, by_priority in grouped.items():
        stage, pool = key
        targets = _targets(free, key)[: max(0, limits.shares[key]) if key in limits.shares else None]
        active = Counter(limits.active.get(key, {}))
        used = 0
        for priority in sorted(by_priority, reverse=True):
            end = len(targets)
            if stage is Stage.INIT:
                # All slots that this round has used so far went to this priority or a higher one.
                end = min(end, max(used, limits.staging[pool].remaining(priority))) if pool in limits.staging else used
            turns = _turns(by_priority[priority], active)
            for (worker_id, queue_partition), request in zip(targets[used:end], turns, strict=False):
                slot = SlotAssigned(stage, pool, worker_id, queue_partition, priority, request.user)
                assigned.append(Assignment(request.partition, slot))
                used += 1
    return assigned


def _targets(free: Sequence[WorkerSlots], key: StagePool) -> list[tuple[str, int]]:
    """A worker and one of its queue partitions for each free slot."""
    workers = [worker for worker in free if (worker.stage, worker.pool) == key and worker.partitions]
    workers.sort(key=lambda worker: -worker.slots)
    return [
        (worker.worker_id, worker.partitions[n % len(worker.partitions)])
        for n in range(max((worker.slots for worker in workers), default=0))
        for worker in workers
        if n < worker.slots
    ]


def _turns(requests: Iterable[SlotRequest], active: Counter[str]) -> Iterator[SlotRequest]:
    """The request to serve next, until all are satisfied; each one yielded is counted in `active`."""
    queues: dict[str, deque[tuple[SlotRequest, int]]] = {}
    for request in requests:
        if request.sessions > 0:
            queues.setdefault(request.user, deque()).append((request, request.sessions))
    order = count()
    users = [(active[user], next(order), user) for user in queues]
    heapq.heapify(users)
    while users:
        _, _, user = heapq.heappop(users)
        queue = queues[user]
        request, sessions = queue.popleft()
        if sessions > 1:
            queue.append((request, sessions - 1))
        active[user] += 1
        if queue:
            heapq.heappush(users, (active[user], next(order), user))
        yield request
