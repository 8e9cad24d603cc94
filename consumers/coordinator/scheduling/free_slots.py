"""Which slots are free, as one coordinator process knows it, and who was served when.

A slot is free when its worker's newest heartbeat says so, or the fact that ends its claim has come since, less the tickets that were
steered to the worker and that this heartbeat can't know of yet (protocol 7). Times are the process clock, ms.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from consumers.coordinator.commands import ReleaseTicket, SlotLent
from consumers.coordinator.deadlines import TICKET_MS
from consumers.coordinator.scheduling.assignment import Free, Lent, Line
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

CLAIM_UNSEEN_MS = 3_000
"""A claim is counted against its worker, and an end for it, for so long at most until a heartbeat of the worker shows it."""
TURNS = 10_000
"""Users and their partitions of which is known when they were served last."""


@dataclass(frozen=True)
class _Steered:
    """A ticket on its way to a worker, or a claim of one."""

    worker_id: str
    stage: Stage
    at: int
    claim_id: str | None = None


class Ledger:
    """Fed with heartbeats in log order, and with what the keepers decide."""

    def __init__(self) -> None:
        self._beats: dict[str, Heartbeat] = {}
        self._claims: dict[str, tuple[str, Stage]] = {}
        """Whose each claim is, by the newest heartbeats."""
        self._steered: dict[tuple[str, Stage], _Steered] = {}
        self._promised: Counter[tuple[str, Stage]] = Counter()
        self._ended: dict[str, _Steered] = {}
        """By claim id: claims that their workers' newest heartbeats still hold, though the facts that end them have come."""
        self._served: OrderedDict[tuple[Stage, str, str, int | None], int] = OrderedDict()
        """By stage, pool, user and partition (None: any): how many slots had been lent when it got its last; the oldest first."""
        self._lent = 0
        self._turn = 0

    def beat(self, heartbeat: Heartbeat) -> None:
        self.lost(heartbeat.worker_id)
        self._beats[heartbeat.worker_id] = heartbeat
        held = {claim: (heartbeat.worker_id, slots.stage) for slots in heartbeat.stages for claim in slots.claims}
        self._claims |= held
        for key in [key for key, steered in self._steered.items() if steered.claim_id in held]:
            del self._steered[key]
        for claim_id in [c for c, ended in self._ended.items() if ended.worker_id == heartbeat.worker_id]:
            if claim_id not in held:
                del self._ended[claim_id]

    def lost(self, worker_id: str) -> None:
        beat = self._beats.pop(worker_id, None)
        for slots in beat.stages if beat is not None else ():
            for claim_id in slots.claims:
                self._claims.pop(claim_id, None)

    def promise(self, lent: Lent) -> None:
        """A slot is lent to a partition that hasn't decided on it yet."""
        slot = lent.slot
        self._promised[slot.worker_id, slot.stage] += 1
        self._lent += 1
        for partition in (None, lent.partition):
            key = slot.stage, slot.pool, slot.user, partition
            self._served[key] = self._lent
            self._served.move_to_end(key)
        while len(self._served) > TURNS:
            self._served.popitem(last=False)

    def served_at(self, line: Line, user: str, partition: int | None = None) -> int:
        """How many slots had been lent when the user, or his partition, was lent his last there; 0 where none was."""
        return self._served.get((*line, user, partition), 0)

    def kept(self, slot: SlotLent) -> None:
        """The partition has decided: what came of it is known by `released`, or nothing did."""
        key = slot.worker_id, slot.stage
        self._promised[key] -= 1
        if not self._promised[key]:
            # There is no end to workers.
            del self._promised[key]

    def released(self, ticket: ReleaseTicket, now: int) -> None:
        self._steered[ticket.session_id, ticket.stage] = _Steered(ticket.worker_id, ticket.stage, now)

    def claimed(self, session_id: str, stage: Stage, worker_id: str, claim_id: str, now: int) -> None:
        """A ticket was taken, perhaps by another worker than it was steered to."""
        if claim_id in self._claims:
            self._steered.pop((session_id, stage), None)
        else:
            self._steered[session_id, stage] = _Steered(worker_id, stage, now, claim_id)

    def over(self, session_id: str, claim_id: str, now: int) -> None:
        """The fact that ends a claim is on the log: its slot is free, before a heartbeat says so, and where none ever showed it taken."""
        for stage in Stage:
            steered = self._steered.get((session_id, stage))
            if steered is not None and steered.claim_id == claim_id:
                del self._steered[session_id, stage]
        if claim_id in self._claims:
            self._ended[claim_id] = _Steered(*self._claims[claim_id], now, claim_id)

    def turn(self) -> None:
        """A round of lending begins: each worker's slots go to the partition after the one they went to last."""
        self._turn += 1

    def free(self, now: int) -> list[Free]:
        """Free slots at `now`, of live workers that don't leave."""
        self._expire(now)
        taken = Counter((steered.worker_id, steered.stage) for steered in self._steered.values()) + self._promised
        ended = Counter((steered.worker_id, steered.stage) for steered in self._ended.values())
        found: list[Free] = []
        for worker_id, slots in self._working():
            free = slots.free + ended[worker_id, slots.stage] - taken[worker_id, slots.stage]
            if free > 0:
                found.append(Free(worker_id, slots.stage, slots.pool, self._rotated(slots), free))
        return found

    def slots(self) -> Counter[Line]:
        """All slots by stage and pool, of live workers that don't leave."""
        found: Counter[Line] = Counter()
        for _, slots in self._working():
            found[slots.stage, slots.pool] += slots.slots
        return found

    def shared(self) -> Counter[Line]:
        """These, and what leaving workers still have in hand: it counts as held by its coordinators, and must not cost them a slot."""
        found = self.slots()
        for beat in self._beats.values():
            for slots in beat.stages if beat.leaving else ():
                found[slots.stage, slots.pool] += len(slots.claims)
        return found

    def _working(self) -> Iterator[tuple[str, StageSlots]]:
        for worker_id, beat in self._beats.items():
            for slots in () if beat.leaving else beat.stages:
                yield worker_id, slots

    def _rotated(self, slots: StageSlots) -> tuple[int, ...]:
        turn = self._turn % max(1, len(slots.partitions))
        return tuple(slots.partitions[turn:] + slots.partitions[:turn])

    def _expire(self, now: int) -> None:
        for key, steered in list(self._steered.items()):
            limit = TICKET_MS if steered.claim_id is None else CLAIM_UNSEEN_MS
            if now >= steered.at + limit:
                del self._steered[key]
        for claim_id, ended in list(self._ended.items()):
            if now >= ended.at + CLAIM_UNSEEN_MS or ended.worker_id not in self._beats:
                del self._ended[claim_id]
