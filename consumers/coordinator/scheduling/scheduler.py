"""One process's scheduler: assigns free slots to its partitions' requests, within the process's share of each pool.

It performs no I/O; the process decides when a round runs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from consumers.coordinator.scheduling.assignment import Limits, SlotRequest, StagePool, StagingLimit, assign
from consumers.coordinator.scheduling.demand import PartitionDemand
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.shares import Peers, backlogs
from topics.fleet import FleetView
from topics.types.session import Stage
from topics.workers import Backlog, Heartbeat

K = TypeVar("K")


class Scheduler:
    """Updated with heartbeats in log order; `assign` runs a round whenever slots may have become free."""

    def __init__(self, worker_id: str, free_slots: FreeSlots, fleet: FleetView) -> None:
        self.demands: dict[int, PartitionDemand] = {}
        """By partition."""
        self._free_slots = free_slots
        self._fleet = fleet
        self._peers = Peers(worker_id)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._free_slots.on_heartbeat(heartbeat)
        self._peers.on_heartbeat(heartbeat)

    def on_worker_lost(self, worker_id: str) -> None:
        self._free_slots.on_worker_lost(worker_id)
        self._peers.on_worker_lost(worker_id)

    @property
    def is_alone(self) -> bool:
        """Whether no other coordinator lives; all slots then belong to this one."""
        return self._peers.is_alone

    def assign(self, now: int) -> None:
        """Run a round at `now` (process clock, ms). While the fleet drains, nothing is assigned."""
        if self._fleet.draining:
            return
        self._free_slots.next_round()
        free = self._free_slots.free(now)
        slots: Counter[StagePool] = Counter()
        for worker in free:
            slots[worker.stage, worker.pool] += worker.slots
        active = {key: _sum(demand.active(*key) for demand in self.demands.values()) for key in slots}
        requests = [request for key, count in slots.items() for request in self._requests(key, count, active[key])]
        if not requests:
            return
        for assignment in assign(free, requests, self._limits(active)):
            self._free_slots.reserve(assignment)
            self.demands[assignment.partition].assign(assignment.slot)

    def _requests(self, key: StagePool, slots: int, active: Counter[str]) -> Iterator[SlotRequest]:
        """Requests that `slots` slots may satisfy. Within a priority the users who were served longest ago come first.

        Slots become free one at a time: with a fixed order among equals, the same user would lose every time. If there are more users than
        slots, only the users with the fewest active sessions are looked at: there may be thousands of users in each partition.
        """
        demands = self.demands.values()
        waiting = _sum(demand.waiting(*key) for demand in demands)
        for priority in sorted(waiting, reverse=True):
            users = dict.fromkeys(user for demand in demands for user in demand.queue.users(*key, priority))
            first = heapq.nsmallest(slots, users, key=lambda u: (active[u], self._free_slots.last_served(key, u)))
            first.sort(key=lambda user: self._free_slots.last_served(key, user))
            found = [request for demand in demands for request in demand.requests(*key, priority, first)]
            order = {user: n for n, user in enumerate(first)}
            found.sort(key=lambda r: (order[r.user], self._free_slots.last_served(key, r.user, r.partition)))
            yield from found
            slots -= waiting[priority]
            if slots <= 0:
                return

    def backlogs(self) -> list[Backlog]:
        """Waiting and active sessions of this process's partitions, for the heartbeat."""
        queues = [demand.queue for demand in self.demands.values()]
        return [
            backlog
            for key in dict.fromkeys(key for queue in queues for key in queue.stage_pools())
            for backlog in backlogs(
                *key,
                _sum(queue.waiting(*key) for queue in queues),
                _sum(queue.active_by_priority(*key) for queue in queues),
            )
        ]

    def staged(self) -> dict[str, int]:
        """Staged sessions by pool, for the heartbeat."""
        pools = dict.fromkeys(pool for demand in self.demands.values() for pool in demand.queue.staged_pools())
        return {pool: self._staged(pool).total() for pool in pools}

    def _staged(self, pool: str) -> Counter[int]:
        return _sum(demand.staged(pool) for demand in self.demands.values())

    def _limits(self, active: dict[StagePool, Counter[str]]) -> Limits:
        slots = self._free_slots.slots()
        staging = {pool: self._staging_limit(pool, slots) for stage, pool in active if stage is Stage.INIT}
        if self.is_alone:
            return Limits(active, {}, staging)
        shared = self._free_slots.shared()
        shares = {key: self._peers.share(*key, shared[key]) - users.total() for key, users in active.items()}
        return Limits(active, shares, staging)

    def _staging_limit(self, pool: str, slots: Counter[StagePool]) -> StagingLimit:
        ready_limit, init_slots = slots[Stage.RUN, pool], slots[Stage.INIT, pool]
        if self.is_alone:
            return StagingLimit(ready_limit, ready_limit + init_slots, self._staged(pool))
        share = self._peers.share_of_staging(pool, ready_limit)
        total = ready_limit + init_slots - self._peers.staged_elsewhere(pool)
        return StagingLimit(share, total, self._staged(pool))


def _sum(counts: Iterable[Counter[K]]) -> Counter[K]:
    total: Counter[K] = Counter()
    for each in counts:
        total.update(each)
    return total
