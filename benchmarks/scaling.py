"""The coordinator with a million live sessions, simulated.

    python -m benchmarks.scaling [--format table|json]

One process with all twelve partitions, without Kafka: tables, deciding and scheduling are real, facts are bytes, workers are simulated.
Half of the sessions run, a hundred in each worker; the others wait, of ten users, eight to a task. Then runs end, and what waits takes
their slots, through init and run. Times are of CPU; a second coordinator would halve them.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil
from msgspec.structs import replace

from benchmarks import report
from benchmarks.coordinator import BODY, PLAN, RUNTIME
from benchmarks.report import Figure
from consumers.coordinator.batch import Batch
from consumers.coordinator.commands import ReleaseTicket
from consumers.coordinator.decide import decide
from consumers.coordinator.leases import Leases
from consumers.coordinator.scheduling.demand import PartitionDemand
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.scheduler import Scheduler
from consumers.coordinator.state import Table
from topics import sessions
from topics.contract.codec import UnknownRecord, encode
from topics.events import CODEC, Claimed, Evaluated, Fact, InitFinished, RunFinished, TrajectoryEmitted, task_of
from topics.fleet import FleetView
from topics.log.partition import partition_of_task
from topics.types.session import Phase, SessionState, Stage, Status, TaskState, session_id_of
from topics.workers import Heartbeat, StageSlots

SESSIONS = 1_000_000
SAMPLES = 8
USERS = 10
RUN_SLOTS = 100
"""A worker's."""
WORKERS = SESSIONS // 2 // RUN_SLOTS
PARTITIONS = sessions.TOPIC.partitions
TURNS = 8
"""Rounds in which runs end and their slots are assigned."""
ENDED = 250
"""Runs that end between two rounds: at a thousand a second, what a quarter of a second brings."""


def run() -> list[Figure]:
    """All figures."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    began = time.process_time()
    fleet = Fleet()
    filled = time.process_time() - began
    gc.collect()
    grown = process.memory_info().rss - before
    report.say(f"{SESSIONS:,} sessions in {PARTITIONS} tables")
    judged = _timed(fleet.judge)
    for _ in range(TURNS):
        fleet.turn()
    rounds = sorted(fleet.rounds)
    return [
        Figure("live sessions", SESSIONS, ""),
        Figure("memory of a session", grown / SESSIONS, "bytes"),
        Figure("tables and indexes made from rows", filled, "s"),
        Figure("facts decided", fleet.facts / fleet.deciding_s, "/s"),
        Figure("a scheduling round, median", rounds[len(rounds) // 2] * 1e3, "ms"),
        Figure("a scheduling round, longest", rounds[-1] * 1e3, "ms"),
        Figure("slots assigned in a scheduling round", fleet.assigned / len(rounds), ""),
        Figure("looking at all leases once", judged * 1e3, "ms"),
        Figure("a heartbeat taken in", fleet.beating_s / fleet.beats * 1e3, "ms"),
    ]


@dataclass
class Worker:
    """What a worker of the simulation has in hand."""

    worker_id: str
    running: dict[str, str]
    """Session by claim."""

    def beat(self) -> Heartbeat:
        run = StageSlots(Stage.RUN, PLAN.pool, RUN_SLOTS, RUN_SLOTS - len(self.running), [0], list(self.running))
        others = [StageSlots(stage, PLAN.pool, 1, 1, [0]) for stage in (Stage.INIT, Stage.EVALUATE)]
        return Heartbeat(self.worker_id, "worker", "host", 1, [run, *others])


class Fleet:
    """One coordinator's tables and scheduler, and the workers of its pool."""

    def __init__(self) -> None:
        self.free_slots, self.leases = FreeSlots(), Leases()
        self.scheduler = Scheduler("coordinator", self.free_slots, FleetView())
        self.tables = [Table(partition) for partition in range(PARTITIONS)]
        self.workers = [Worker(f"worker-{number}", {}) for number in range(WORKERS)]
        self.now = 0
        self.facts = self.assigned = self.beats = 0
        self.deciding_s = self.beating_s = 0.0
        self.rounds: list[float] = []
        self._fill()
        for table in self.tables:
            demand = PartitionDemand(table.partition, table.queue, self.free_slots, lambda: None)
            demand.is_open = True
            self.scheduler.demands[table.partition] = demand
        self._beat(self.workers)
        self.running = deque(
            (worker, claim_id, session_id) for worker in self.workers for claim_id, session_id in worker.running.items()
        )

    def _fill(self) -> None:
        rows: list[list[bytes]] = [[] for _ in self.tables]
        for row in self._rows():
            rows[partition_of_task(row.task_id, PARTITIONS)].append(encode(row))
        for table, found in zip(self.tables, rows, strict=True):
            table.fill(row for row in map(sessions.CODEC.decode, found) if isinstance(row, TaskState | SessionState))
            found.clear()

    def _rows(self) -> Iterator[TaskState | SessionState]:
        for number in range(SESSIONS // SAMPLES):
            task_id = f"task-{number:06}"
            yield TaskState(task_id, SAMPLES, "0" * 64, BODY, plan=replace(PLAN, user=f"user-{number % USERS}"))
            for index in range(SAMPLES):
                queued = SessionState(session_id_of(task_id, index), task_id, index, Phase.QUEUED, 0)
                yield queued if number % 2 else self._running(queued, number // 2 * SAMPLES + index)

    def _running(self, queued: SessionState, number: int) -> SessionState:
        worker = self.workers[number % WORKERS]
        claim_id = f"r-{number:016x}"
        worker.running[claim_id] = queued.session_id
        return replace(
            queued,
            phase=Phase.RUNNING,
            claim_id=claim_id,
            run_claim_id=claim_id,
            worker_id=worker.worker_id,
            runtime=RUNTIME,
            init_claim_id=f"i-{number:016x}",
            log_offset=number,
        )

    def judge(self) -> None:
        """Check all leases, as a coordinator does once a second."""
        lost = [
            claim
            for table in self.tables
            for worker, claims in table.granted_claims.items()
            for claim in self.leases.lost_claims(worker, claims.keys())
        ]
        assert not lost

    def turn(self) -> None:
        """Runs end; their slots and all others are assigned, and the tickets worked on at once, until no run slot is left."""
        self.now += 250
        ended = [self.running.popleft() for _ in range(ENDED)]
        self._decide(
            [RunFinished("f", name, 1, claim, Status.COMPLETED, 0, duration_ms=9000) for _, claim, name in ended]
        )
        for worker, claim_id, session_id in ended:
            del worker.running[claim_id]
            self.free_slots.on_claim_ended(session_id, claim_id, self.now)
        self._beat([worker for worker, _, _ in ended])
        for _ in Stage:
            self.rounds.append(_timed(lambda: self.scheduler.assign(self.now)))
            self._work(self._tickets())

    def _tickets(self) -> list[ReleaseTicket]:
        """The tickets that the tables release for the slots assigned to them."""
        began = time.process_time()
        tickets: list[ReleaseTicket] = []
        for table in self.tables:
            demand = self.scheduler.demands[table.partition]
            while (slot := demand.next_slot) is not None:
                decision = decide(table, slot, self.now)
                Batch.of(decision)
                table.apply(decision)
                tickets += [command for command in decision.commands if isinstance(command, ReleaseTicket)]
                demand.slot_decided()
        self.deciding_s += time.process_time() - began
        for ticket in tickets:
            self.free_slots.on_ticket(ticket, self.now)
        self.assigned += len(tickets)
        return tickets

    def _work(self, tickets: list[ReleaseTicket]) -> None:
        """All are claimed; runs go on, the rest is done at once."""
        claims = [f"{ticket.stage.value[0]}-{ticket.session_id}" for ticket in tickets]
        self._decide(
            [Claimed("f", t.session_id, 1, t.stage, c, t.worker_id) for t, c in zip(tickets, claims, strict=True)]
        )
        told: list[Fact] = []
        for ticket, claim_id in zip(tickets, claims, strict=True):
            session_id, stage = ticket.session_id, ticket.stage
            self.free_slots.on_claimed(session_id, stage, ticket.worker_id, claim_id, self.now)
            match stage:
                case Stage.INIT:
                    told.append(InitFinished("f", session_id, 1, claim_id, runtime=RUNTIME, duration_ms=900))
                case Stage.EVALUATE:
                    told.append(Evaluated("f", session_id, 1, claim_id, reward=1.0, duration_ms=900))
                    told.append(TrajectoryEmitted("f", session_id, 1, 1, 400, 3, Status.COMPLETED, None, 1.0))
                case Stage.RUN:
                    worker = self.workers[int(ticket.worker_id.removeprefix("worker-"))]
                    worker.running[claim_id] = session_id
                    self.running.append((worker, claim_id, session_id))
                    continue
            self.free_slots.on_claim_ended(session_id, claim_id, self.now)
        self._decide(told)

    def _decide(self, facts: Sequence[Fact]) -> None:
        """Timed: from bytes to bytes."""
        written = [(encode(fact), self.tables[partition_of_task(task_of(fact), PARTITIONS)]) for fact in facts]
        self.facts += len(facts)
        began = time.process_time()
        for value, table in written:
            fact = CODEC.decode(value)
            assert not isinstance(fact, UnknownRecord)
            decision = decide(table, fact, self.now)
            Batch.of(decision)
            table.apply(decision)
        self.deciding_s += time.process_time() - began

    def _beat(self, workers: list[Worker]) -> None:
        beats = [worker.beat() for worker in workers]
        began = time.process_time()
        for beat in beats:
            self.leases.on_heartbeat(beat)
            self.scheduler.on_heartbeat(beat)
        self.beating_s += time.process_time() - began
        self.beats += len(beats)


def _timed(step: Callable[[], object]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


if __name__ == "__main__":
    report.main(__doc__, run)
