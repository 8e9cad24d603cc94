"""Who gets the pool's free slots: `lend` is pure, `Ledger` keeps what it needs to know of the workers.

Credit belongs to a pool and so to all partitions, `decide` to one. A slot is free when the worker's newest heartbeat says so, less the
tickets that were steered to it since and that this heartbeat can't know of yet (protocol 7). INIT tickets flow only while the pool's
sessions between INIT ticket and run claim are under `ready_limit`, so that sandboxes don't pile up before the run slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from consumers.coordinator.commands import ReleaseTicket, SlotLent
from consumers.coordinator.state import TICKET_MS
from polar.types.session import Stage
from topics.workers import Heartbeat, StageSlots

CLAIM_UNSEEN_MS = 3_000
"""A claim is counted against its worker for so long at most until a heartbeat of the worker holds it."""


@dataclass(frozen=True)
class Free:
    """Free slots of one worker's stage, and the queue partitions that it reads."""

    worker_id: str
    stage: Stage
    pool: str
    partitions: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class Want:
    """Sessions of one partition that want a slot."""

    partition: int
    stage: Stage
    pool: str
    sessions: int


@dataclass(frozen=True)
class Lent:
    """A slot for one partition of `polar.events`."""

    partition: int
    slot: SlotLent


def lend(free: list[Free], wants: list[Want], init_room: dict[str, int]) -> list[Lent]:
    """Share free slots among the wants of all partitions, one to each in the order given, then again.

    `init_room` is how many more sessions each pool may have staged before its run slots. Workers take turns, so that load is even,
    and a worker's slots go round its queue partitions, so that a ticket that came to nothing is steered elsewhere the next time.
    """
    lent: list[Lent] = []
    for stage, pool in dict.fromkeys((want.stage, want.pool) for want in wants):
        able = [worker for worker in free if (worker.stage, worker.pool) == (stage, pool) and worker.partitions]
        able.sort(key=lambda worker: -worker.slots)
        places = [
            (worker.worker_id, worker.partitions[n % len(worker.partitions)])
            for n in range(max((worker.slots for worker in able), default=0))
            for worker in able
            if n < worker.slots
        ]
        if stage is Stage.INIT:
            places = places[: max(0, init_room.get(pool, 0))]
        takers = [want for want in wants if (want.stage, want.pool) == (stage, pool)]
        turns = [want.partition for n in range(max(w.sessions for w in takers)) for want in takers if n < want.sessions]
        for partition, (worker_id, queue_partition) in zip(turns, places, strict=False):
            lent.append(Lent(partition, SlotLent(stage, pool, worker_id, queue_partition)))
    return lent


@dataclass
class _Steered:
    worker_id: str
    stage: Stage
    at: int
    claim_id: str | None = None


class Ledger:
    """What the heartbeats say of slots, and which tickets they can't know of yet. Times are process clock, ms."""

    def __init__(self) -> None:
        self._beats: dict[str, Heartbeat] = {}
        self._steered: dict[tuple[str, Stage], _Steered] = {}
        self._promised: Counter[tuple[str, Stage]] = Counter()
        self._served: dict[tuple[int, Stage, str], int] = {}
        """By partition, stage and pool: the turn in which a slot was last lent there."""
        self._turn = 0

    def beat(self, heartbeat: Heartbeat) -> None:
        self._beats[heartbeat.worker_id] = heartbeat
        held = {claim for slots in heartbeat.stages for claim in slots.claims}
        for key in [key for key, steered in self._steered.items() if steered.claim_id in held]:
            del self._steered[key]

    def lost(self, worker_id: str) -> None:
        self._beats.pop(worker_id, None)

    def promise(self, lent: Lent) -> None:
        """A slot is lent to a partition that hasn't decided on it yet."""
        slot = lent.slot
        self._promised[slot.worker_id, slot.stage] += 1
        self._served[lent.partition, slot.stage, slot.pool] = self._turn

    def in_turn(self, wants: Iterable[Want]) -> list[Want]:
        """Those first that have waited longest: slots come free one at a time, and a long backlog must not take them all."""
        return sorted(wants, key=lambda want: self._served.get((want.partition, want.stage, want.pool), 0))

    def kept(self, slot: SlotLent) -> None:
        """The partition has decided: what came of it is known by `released`, or nothing did."""
        self._promised[slot.worker_id, slot.stage] -= 1

    def released(self, ticket: ReleaseTicket, now: int) -> None:
        self._steered[ticket.session_id, ticket.stage] = _Steered(ticket.worker_id, ticket.stage, now)

    def claimed(self, session_id: str, stage: Stage, worker_id: str, claim_id: str, now: int) -> None:
        """A ticket was taken, perhaps by another worker than it was steered to."""
        beat = self._beats.get(worker_id)
        if beat is not None and any(claim_id in slots.claims for slots in beat.stages):
            self._steered.pop((session_id, stage), None)
        else:
            self._steered[session_id, stage] = _Steered(worker_id, stage, now, claim_id)

    def over(self, session_id: str, claim_id: str) -> None:
        """The fact that ends a claim is on the log: its slot is free, though perhaps no heartbeat ever showed it taken."""
        for stage in Stage:
            steered = self._steered.get((session_id, stage))
            if steered is not None and steered.claim_id == claim_id:
                del self._steered[session_id, stage]

    def free(self, now: int) -> list[Free]:
        """Free slots at `now`, of live workers that don't leave."""
        self._expire(now)
        taken = Counter((steered.worker_id, steered.stage) for steered in self._steered.values()) + self._promised
        found: list[Free] = []
        self._turn += 1
        for beat in self._beats.values():
            for slots in () if beat.leaving else beat.stages:
                free = slots.free - taken[beat.worker_id, slots.stage]
                if free > 0:
                    found.append(Free(beat.worker_id, slots.stage, slots.pool, self._rotated(slots), free))
        return found

    def run_slots(self, pool: str) -> int:
        """All run slots of a pool: the default `ready_limit`."""
        stages = (slots for beat in self._beats.values() if not beat.leaving for slots in beat.stages)
        return sum(slots.slots for slots in stages if slots.stage is Stage.RUN and slots.pool == pool)

    def _rotated(self, slots: StageSlots) -> tuple[int, ...]:
        turn = self._turn % max(1, len(slots.partitions))
        return tuple(slots.partitions[turn:] + slots.partitions[:turn])

    def _expire(self, now: int) -> None:
        for key, steered in list(self._steered.items()):
            limit = TICKET_MS if steered.claim_id is None else CLAIM_UNSEEN_MS
            if now >= steered.at + limit:
                del self._steered[key]
