"""The free slots of all workers, as one coordinator process knows them, and when each user was served last.

A slot is free if its worker's newest heartbeat says so or the fact that ends its claim has come since. Tickets that were sent to the worker
and that its newest heartbeat can't reflect yet are subtracted (protocol 7). Times are the process clock, ms.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from consumers.coordinator.commands import ReleaseTicket, SlotAssigned
from consumers.coordinator.deadlines import TICKET_MS
from consumers.coordinator.scheduling.assignment import Assignment, StagePool, WorkerSlots
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

CLAIM_UNSEEN_MS = 3_000
"""How long a claim, or a claim's end, is counted while no heartbeat of its worker shows it; heartbeats come every 2 s."""
SERVED_LIMIT = 10_000
"""For how many users and their partitions the last assignment is remembered; limits memory."""


@dataclass(frozen=True)
class _Use:
    """A slot's use that the worker's newest heartbeat doesn't show: a ticket on its way, or a claim."""

    worker_id: str
    stage: Stage
    at: int
    claim_id: str | None = None


class FreeSlots:
    """Updated with heartbeats in log order, and with what the partitions decide."""

    def __init__(self) -> None:
        self._heartbeats: dict[str, Heartbeat] = {}
        self._claims: dict[str, tuple[str, Stage]] = {}
        """Worker and stage of each claim in the newest heartbeats."""
        self._unseen: dict[tuple[str, Stage], _Use] = {}
        """By session and stage: tickets and claims that no heartbeat shows yet."""
        self._reserved: Counter[tuple[str, Stage]] = Counter()
        self._ended: dict[str, _Use] = {}
        """By claim id: claims that have ended on the log, though their workers' newest heartbeats still list them."""
        self._served: OrderedDict[tuple[Stage, str, str, int | None], int] = OrderedDict()
        """By stage, pool, user and partition (None: any): the count of assignments when it was served last; the oldest first."""
        self._assignments = 0
        self._round = 0

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.on_worker_lost(heartbeat.worker_id)
        self._heartbeats[heartbeat.worker_id] = heartbeat
        claims = {claim: (heartbeat.worker_id, slots.stage) for slots in heartbeat.stages for claim in slots.claims}
        self._claims |= claims
        for key in [key for key, use in self._unseen.items() if use.claim_id in claims]:
            del self._unseen[key]
        for claim_id in [c for c, use in self._ended.items() if use.worker_id == heartbeat.worker_id]:
            if claim_id not in claims:
                del self._ended[claim_id]

    def on_worker_lost(self, worker_id: str) -> None:
        heartbeat = self._heartbeats.pop(worker_id, None)
        for slots in heartbeat.stages if heartbeat is not None else ():
            for claim_id in slots.claims:
                self._claims.pop(claim_id, None)

    def reserve(self, assignment: Assignment) -> None:
        """Count an assigned slot as used until its partition has decided on it (`unreserve`)."""
        slot = assignment.slot
        self._reserved[slot.worker_id, slot.stage] += 1
        self._assignments += 1
        for partition in (None, assignment.partition):
            key = slot.stage, slot.pool, slot.user, partition
            self._served[key] = self._assignments
            self._served.move_to_end(key)
        while len(self._served) > SERVED_LIMIT:
            self._served.popitem(last=False)

    def last_served(self, key: StagePool, user: str, partition: int | None = None) -> int:
        """The number of the last assignment to the user, or to the user's partition, in this stage and pool; 0 if there was none."""
        return self._served.get((*key, user, partition), 0)

    def unreserve(self, slot: SlotAssigned) -> None:
        key = slot.worker_id, slot.stage
        self._reserved[key] -= 1
        if not self._reserved[key]:
            # New workers keep coming: zeros would pile up.
            del self._reserved[key]

    def on_ticket(self, ticket: ReleaseTicket, now: int) -> None:
        self._unseen[ticket.session_id, ticket.stage] = _Use(ticket.worker_id, ticket.stage, now)

    def on_claimed(self, session_id: str, stage: Stage, worker_id: str, claim_id: str, now: int) -> None:
        """A ticket was claimed, perhaps by another worker than it was sent to."""
        if claim_id in self._claims:
            self._unseen.pop((session_id, stage), None)
        else:
            self._unseen[session_id, stage] = _Use(worker_id, stage, now, claim_id)

    def on_claim_ended(self, session_id: str, claim_id: str, now: int) -> None:
        """The fact that ends a claim is on the log: its slot is free before a heartbeat says so, even if none ever listed the claim."""
        for stage in Stage:
            use = self._unseen.get((session_id, stage))
            if use is not None and use.claim_id == claim_id:
                del self._unseen[session_id, stage]
        if claim_id in self._claims:
            self._ended[claim_id] = _Use(*self._claims[claim_id], now, claim_id)

    def next_round(self) -> None:
        """Rotate the queue partitions by one: each worker's next slot goes to the partition after the last round's."""
        self._round += 1

    def free(self, now: int) -> list[WorkerSlots]:
        """Free slots at `now` of live workers that aren't leaving."""
        self._expire(now)
        used = Counter((use.worker_id, use.stage) for use in self._unseen.values()) + self._reserved
        ended = Counter((use.worker_id, use.stage) for use in self._ended.values())
        found: list[WorkerSlots] = []
        for worker_id, slots in self._working():
            free = slots.free + ended[worker_id, slots.stage] - used[worker_id, slots.stage]
            if free > 0:
                found.append(WorkerSlots(worker_id, slots.stage, slots.pool, self._rotated(slots), free))
        return found

    def slots(self) -> Counter[StagePool]:
        """All slots of live workers that aren't leaving."""
        found: Counter[StagePool] = Counter()
        for _, slots in self._working():
            found[slots.stage, slots.pool] += slots.slots
        return found

    def shared(self) -> Counter[StagePool]:
        """The slots that coordinators share: `slots` plus the claims that leaving workers still work on.

        Their coordinators count these claims as active, so without them each claim would cost its coordinator a slot elsewhere.
        """
        found = self.slots()
        for heartbeat in self._heartbeats.values():
            for slots in heartbeat.stages if heartbeat.leaving else ():
                found[slots.stage, slots.pool] += len(slots.claims)
        return found

    def _working(self) -> Iterator[tuple[str, StageSlots]]:
        for worker_id, heartbeat in self._heartbeats.items():
            for slots in () if heartbeat.leaving else heartbeat.stages:
                yield worker_id, slots

    def _rotated(self, slots: StageSlots) -> tuple[int, ...]:
        first = self._round % max(1, len(slots.partitions))
        return tuple(slots.partitions[first:] + slots.partitions[:first])

    def _expire(self, now: int) -> None:
        for key, use in list(self._unseen.items()):
            if now >= use.at + (TICKET_MS if use.claim_id is None else CLAIM_UNSEEN_MS):
                del self._unseen[key]
        for claim_id, use in list(self._ended.items()):
            if now >= use.at + CLAIM_UNSEEN_MS or use.worker_id not in self._heartbeats:
                del self._ended[claim_id]
