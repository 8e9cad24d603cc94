"""One process's lending: what its partitions want meets what the ledger knows to be free, within the process's share of each pool.

`lend` decides, `shares` bounds it, keepers and heartbeats are fed and asked from here. No I/O: the loop says when.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from consumers.coordinator.fleet import FleetView
from consumers.coordinator.scheduling.assignment import Credit, Line, Room, Want, lend
from consumers.coordinator.scheduling.demand import Borrower
from consumers.coordinator.scheduling.free_slots import Ledger
from consumers.coordinator.scheduling.shares import Peers, backlogs
from topics.types.session import Stage
from topics.workers import Backlog, Heartbeat

K = TypeVar("K")


class Lender:
    """Fed with heartbeats in log order, and asked for a round whenever something may have come free."""

    def __init__(self, own_id: str, ledger: Ledger, fleet: FleetView) -> None:
        self.borrowers: dict[int, Borrower] = {}
        """By partition."""
        self._ledger = ledger
        self._fleet = fleet
        self._peers = Peers(own_id)

    def beat(self, heartbeat: Heartbeat) -> None:
        self._ledger.beat(heartbeat)
        self._peers.beat(heartbeat)

    def lost(self, worker_id: str) -> None:
        self._ledger.lost(worker_id)
        self._peers.lost(worker_id)

    @property
    def is_alone(self) -> bool:
        """Whether no other coordinator lives: then all slots are this one's."""
        return self._peers.is_alone

    def lend(self, now: int) -> None:
        """A round at `now`, process clock, ms. While the fleet drains nothing is lent."""
        if self._fleet.draining:
            return
        self._ledger.turn()
        free = self._ledger.free(now)
        slots: Counter[Line] = Counter()
        for worker in free:
            slots[worker.stage, worker.pool] += worker.slots
        in_hand = {line: _sum(borrower.in_hand(*line) for borrower in self.borrowers.values()) for line in slots}
        wants = [want for line, count in slots.items() for want in self._wants(line, count, in_hand[line])]
        if not wants:
            return
        for lent in lend(free, wants, self._credit(in_hand)):
            self._ledger.promise(lent)
            self.borrowers[lent.partition].give(lent.slot)

    def _wants(self, line: Line, slots: int, in_hand: Counter[str]) -> Iterator[Want]:
        """As many as so many slots may come to; at one priority first of those who were served longest ago.

        Slots come free one at a time, and who is equal in all else must not lose each time. Of more users than slots those with the
        fewest sessions in hand get all, and the others aren't looked at: there may be thousands, in each partition.
        """
        borrowers = self.borrowers.values()
        waiting = _sum(borrower.sessions(*line) for borrower in borrowers)
        for priority in sorted(waiting, reverse=True):
            users = dict.fromkeys(user for borrower in borrowers for user in borrower.waiting.users(*line, priority))
            first = heapq.nsmallest(slots, users, key=lambda u: (in_hand[u], self._ledger.served_at(line, u)))
            first.sort(key=lambda user: self._ledger.served_at(line, user))
            found = [want for borrower in borrowers for want in borrower.wants(*line, priority, first)]
            order = {user: n for n, user in enumerate(first)}
            found.sort(key=lambda w: (order[w.user], self._ledger.served_at(line, w.user, w.partition)))
            yield from found
            slots -= waiting[priority]
            if slots <= 0:
                return

    def backlogs(self) -> list[Backlog]:
        """For the heartbeat: what this process's partitions want and hold."""
        lines = dict.fromkeys(line for borrower in self.borrowers.values() for line in borrower.waiting.known())
        return [
            told
            for stage, pool in lines
            for told in backlogs(
                stage,
                pool,
                _sum(borrower.waiting.sessions(stage, pool) for borrower in self.borrowers.values()),
                _sum(borrower.waiting.held(stage, pool) for borrower in self.borrowers.values()),
            )
        ]

    def staged(self) -> dict[str, int]:
        """For the heartbeat: sessions between an INIT ticket and a run claim, by pool."""
        pools = dict.fromkeys(pool for borrower in self.borrowers.values() for pool in borrower.waiting.pools_staged())
        return {pool: self._staged(pool).total() for pool in pools}

    def _staged(self, pool: str) -> Counter[int]:
        return _sum(borrower.staged(pool) for borrower in self.borrowers.values())

    def _credit(self, in_hand: dict[Line, Counter[str]]) -> Credit:
        slots = self._ledger.slots()
        rooms = {pool: self._room(pool, slots) for stage, pool in in_hand if stage is Stage.INIT}
        if self.is_alone:
            return Credit(in_hand, {}, rooms)
        shared = self._ledger.shared()
        shares = {
            (stage, pool): self._peers.share(stage, pool, shared[stage, pool]) - users.total()
            for (stage, pool), users in in_hand.items()
        }
        return Credit(in_hand, shares, rooms)

    def _room(self, pool: str, slots: Counter[Line]) -> Room:
        limit, spare = slots[Stage.RUN, pool], slots[Stage.INIT, pool]
        if self.is_alone:
            return Room(limit, limit + spare, self._staged(pool))
        share = self._peers.share_of_staging(pool, limit)
        return Room(share, limit + spare - self._peers.staged_elsewhere(pool), self._staged(pool))


def _sum(counts: Iterable[Counter[K]]) -> Counter[K]:
    found: Counter[K] = Counter()
    for each in counts:
        found.update(each)
    return found
