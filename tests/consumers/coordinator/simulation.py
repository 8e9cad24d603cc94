"""A fleet in simulated time: real tables, deciding and scheduling; stand-ins for Kafka (delays) and for the workers (they only wait).

Delays are those of a quiet machine: 5 ms to read a record, 35 ms for a transaction, heartbeats at most ten a second.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from msgspec.structs import replace

from consumers.coordinator.commands import DeadlinePassed, Input, ReleaseTicket
from consumers.coordinator.decide import decide
from consumers.coordinator.scheduling.demand import PartitionDemand
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.scheduler import Scheduler
from consumers.coordinator.state import Table
from tests.consumers.coordinator.bench import PLAN
from topics.control import Grant, Revoke
from topics.events import Claimed, Evaluated, Fact, InitFinished, RunFinished, TaskSubmitted
from topics.fleet import FleetView
from topics.types.session import SessionState, Stage, Status, task_id_of
from topics.workers import Heartbeat, StageSlots

READ_MS = 5
COMMIT_MS = 35
BEAT_GAP_MS = 100
BEAT_MS = 2_000
ASSIGN_MS = 250
QUEUE_PARTITIONS = 8
"""Of each stage."""


class Simulation:
    """Partitions are spread over the coordinators; all workers are of pool `default`, `slots` says what each has of a stage."""

    def __init__(
        self,
        duration_ms: Callable[[Stage], int],
        *,
        coordinators: int = 1,
        partitions: int = 4,
        workers: int = 4,
        slots: dict[Stage, int],
    ) -> None:
        self.now = 0
        self.duration_ms = duration_ms
        self.fleet = FleetView()
        self.coordinators = [Coordinator(self, f"c{n}") for n in range(coordinators)]
        self.partitions = [Partition(self, self.coordinators[n % coordinators], n) for n in range(partitions)]
        self.workers = [Worker(self, n, workers, slots) for n in range(workers)]
        self.started: dict[str, int] = {}
        """When each session's run began."""
        self.freed: list[int] = []
        """When run slots came free."""
        self.ran_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        for member in (*self.coordinators, *self.workers):
            member.beat()
        self._every(ASSIGN_MS, self._tick)

    def after(self, ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ms, next(self._order), what))

    def run(self, until_ms: int, watch: Callable[[], None] = lambda: None) -> None:
        """`watch` is called after each event."""
        while self._events and self._events[0][0] <= until_ms:
            self.now, _, what = heapq.heappop(self._events)
            what()
            watch()
        self.now = until_ms

    def submit(self, task_id: str, samples: int, *, priority: int = 0, user: str = "") -> None:
        plan = replace(PLAN, priority=priority, user=user)
        self.say(TaskSubmitted("f", task_id, samples, "a", plan, body=b"a"), task_id)

    def say(self, fact: Fact, task_id: str) -> None:
        """A fact on the log."""
        self.after(READ_MS, lambda: self.partition_of(task_id).step(fact))

    def partition_of(self, task_id: str) -> Partition:
        return self.partitions[sum(task_id.encode()) % len(self.partitions)]

    def broadcast(self, beat: Heartbeat) -> None:
        for coordinator in self.coordinators:
            self.after(READ_MS, partial(coordinator.hear, beat))

    def queue(self, ticket: ReleaseTicket, session: SessionState) -> None:
        for worker in self.workers:
            if ticket.queue_partition in worker.partitions:
                worker.queues[ticket.stage].append((session.session_id, session.attempt))
                worker.take(ticket.stage)

    def answer(self, command: Grant | Revoke) -> None:
        for worker in self.workers:
            worker.hear(command)

    def staged(self) -> int:
        """Sessions between an INIT ticket and a run claim."""
        return sum(partition.table.queue.staged("default").total() for partition in self.partitions)

    def busy_ms(self) -> int:
        """What all run slots have worked, those under way included."""
        claims = [claim for worker in self.workers for claim in worker.slots[Stage.RUN].claims.values()]
        return self.ran_ms + sum(self.now - claim.began for claim in claims if claim.began is not None)

    def sessions_waiting(self) -> int:
        """For their INIT slot."""
        return sum(p.table.queue.waiting(Stage.INIT, "default").total() for p in self.partitions)

    def running(self, partition: int) -> int:
        """Sessions of a partition with a run ticket or claim."""
        return self.partitions[partition].table.queue.active_by_priority(Stage.RUN, "default").total()

    def queued_tickets(self, stage: Stage) -> int:
        """Tickets that nobody has taken yet."""
        return sum(len(worker.queues[stage]) for worker in self.workers)

    def _tick(self) -> None:
        for partition in self.partitions:
            partition.look()
        for coordinator in self.coordinators:
            coordinator.assign()

    def _every(self, ms: int, what: Callable[[], None]) -> None:
        def again() -> None:
            what()
            self.after(ms, again)

        self.after(ms, again)


class Member:
    """Beats every 2 s, and soon after a change."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self._may_beat_at = 0
        self._is_due = False

    def heartbeat(self) -> Heartbeat:
        raise NotImplementedError

    def beat(self) -> None:
        self._is_due = False
        self._may_beat_at = self.simulation.now + BEAT_GAP_MS
        self.simulation.broadcast(self.heartbeat())

    def changed(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.simulation.after(max(0, self._may_beat_at - self.simulation.now), self.beat)


class Coordinator(Member):
    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.free_slots = FreeSlots()
        self.scheduler = Scheduler(name, self.free_slots, simulation.fleet)
        self._reported: object = None

    def heartbeat(self) -> Heartbeat:
        backlogs, staged = self.scheduler.backlogs(), self.scheduler.staged()
        self._reported = backlogs, staged
        return Heartbeat(self.name, "coordinator", "h", 1, backlogs=backlogs, staged=staged)

    def hear(self, beat: Heartbeat) -> None:
        self.scheduler.on_heartbeat(beat)
        self.assign()

    def assign(self) -> None:
        self.scheduler.assign(self.simulation.now)
        if not self.scheduler.is_alone and self._reported != (self.scheduler.backlogs(), self.scheduler.staged()):
            self.changed()


class Partition:
    """A `PartitionCoordinator` without Kafka."""

    def __init__(self, simulation: Simulation, coordinator: Coordinator, number: int) -> None:
        self.simulation = simulation
        self.coordinator = coordinator
        self.table = Table(number)
        self.demand = PartitionDemand(number, self.table.queue, coordinator.free_slots, self._woken)
        self.demand.is_open = True
        coordinator.scheduler.demands[number] = self.demand

    def _woken(self) -> None:
        self.simulation.after(0, self._decide_slots)

    def step(self, fact: Fact) -> None:
        self._take(fact)
        self.coordinator.assign()
        self._decide_slots()

    def look(self) -> None:
        for session_id in self.table.pop_due(self.simulation.now):
            self._take(DeadlinePassed(session_id))

    def _decide_slots(self) -> None:
        while (slot := self.demand.next_slot) is not None:
            self._take(slot)
            self.demand.slot_decided()

    def _take(self, given: Input) -> None:
        now, free_slots = self.simulation.now, self.coordinator.free_slots
        decision = decide(self.table, given, now)
        self.table.apply(decision)
        match given:
            case Claimed():
                free_slots.on_claimed(given.session_id, given.stage, given.worker_id, given.claim_id, now)
            case InitFinished() | RunFinished() | Evaluated():
                free_slots.on_claim_ended(given.session_id, given.claim_id, now)
        for command in decision.commands:
            match command:
                case ReleaseTicket():
                    free_slots.on_ticket(command, now)
                    session = self.table.session(command.session_id)
                    assert session is not None
                    self.simulation.after(COMMIT_MS, partial(self.simulation.queue, command, session))
                case Grant() | Revoke():
                    self.simulation.after(COMMIT_MS, partial(self.simulation.answer, command))


@dataclass
class Claim:
    session_id: str
    attempt: int
    stage: Stage
    began: int | None = None


@dataclass
class Slots:
    total: int
    claims: dict[str, Claim] = field(default_factory=dict)


class Worker(Member):
    """Takes a ticket only with a free slot, starts it when it is granted, and says when it is done."""

    def __init__(self, simulation: Simulation, number: int, workers: int, slots: dict[Stage, int]) -> None:
        super().__init__(simulation, f"w{number}")
        self.partitions = [n for n in range(QUEUE_PARTITIONS) if n % workers == number]
        self.slots = {stage: Slots(total) for stage, total in slots.items()}
        self.queues: dict[Stage, deque[tuple[str, int]]] = defaultdict(deque)
        self._claims = count()

    def heartbeat(self) -> Heartbeat:
        stages = [
            StageSlots(stage, "default", s.total, s.total - len(s.claims), self.partitions, list(s.claims))
            for stage, s in self.slots.items()
        ]
        return Heartbeat(self.name, "worker", "h", 1, stages)

    def take(self, stage: Stage) -> None:
        slots = self.slots[stage]
        while self.queues[stage] and len(slots.claims) < slots.total:
            session_id, attempt = self.queues[stage].popleft()
            claim_id = f"{self.name}-{next(self._claims)}"
            slots.claims[claim_id] = Claim(session_id, attempt, stage)
            asked = Claimed("f", session_id, attempt, stage, claim_id, self.name)
            self.simulation.say(asked, task_id_of(session_id))
            self.changed()

    def hear(self, command: Grant | Revoke) -> None:
        for slots in self.slots.values():
            claim = slots.claims.get(command.claim_id)
            if claim is None or claim.began is not None:
                continue
            if isinstance(command, Revoke):
                self._free(command.claim_id, claim)
            else:
                claim.began = self.simulation.now
                if claim.stage is Stage.RUN:
                    self.simulation.started.setdefault(claim.session_id, self.simulation.now)
                lasts = self.simulation.duration_ms(claim.stage)
                self.simulation.after(lasts, partial(self._done, command.claim_id, claim))

    def _done(self, claim_id: str, claim: Claim) -> None:
        assert claim.began is not None
        if claim.stage is Stage.RUN:
            self.simulation.ran_ms += self.simulation.now - claim.began
        base = "f", claim.session_id, claim.attempt, claim_id
        fact: Fact
        match claim.stage:
            case Stage.INIT:
                fact = InitFinished(*base, runtime={})
            case Stage.RUN:
                fact = RunFinished(*base, Status.COMPLETED, 0)
            case Stage.EVALUATE:
                fact = Evaluated(*base, reward=1.0)
        self.simulation.say(fact, task_id_of(claim.session_id))
        # Its acknowledgement, then the tidying up.
        self.simulation.after(2 * READ_MS, lambda: self._free(claim_id, claim))

    def _free(self, claim_id: str, claim: Claim) -> None:
        del self.slots[claim.stage].claims[claim_id]
        if claim.stage is Stage.RUN:
            self.simulation.freed.append(self.simulation.now)
        self.changed()
        self.take(claim.stage)
