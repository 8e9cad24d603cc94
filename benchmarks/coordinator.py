"""The coordinator: facts decided a second, memory of live sessions, and a restart with a hundred thousand of them.

    python -m benchmarks.coordinator [--format table|json]

Deciding is one process without Kafka: facts as bytes are decoded, their MACs verified, decided, applied to the table, and rows and records
encoded, as a coordinator does between two transactions. Sessions go the plain way from TaskSubmitted to TrajectoryEmitted, eight to a task;
their slots are decided, too, and not counted. A second is one of CPU. Memory is what the process grows by with the table and its indexes.
The restart is a coordinator's process on a real broker, from its start until it has decided a new task in every partition.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

from benchmarks import report
from benchmarks.report import Figure
from benchmarks.system import child, cpu
from consumers.coordinator.batch import Batch
from consumers.coordinator.claim_proofs import is_proven
from consumers.coordinator.commands import SlotAssigned
from consumers.coordinator.decide import decide
from consumers.coordinator.state import Table
from polar.embedded import Broker
from topics import events, sessions
from topics.contract import catalogue
from topics.contract.codec import UnknownRecord, encode
from topics.environment.claim_keys import ClaimKeys, headers, new_claim_id, ticket_id, ticket_of
from topics.environment.keys import ensure_keys_file
from topics.environment.settings import ENV_FILE, Settings, load, write_env_file
from topics.events import (
    Claimed,
    ClaimFact,
    Evaluated,
    Fact,
    InitFinished,
    RunFinished,
    TaskSubmitted,
    TrajectoryEmitted,
)
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.sessions import Position
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState, session_id_of

SAMPLES = 8
TASKS = 2_000
LIVE = 100_000
COMMIT = 500
"""Facts between two transactions."""
WANTED_S = 15
GIVE_UP_S = 120.0
PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b'{"dataset": "bench"}')
BODY = b'{"instruction": "%s"}' % (b"x" * 1000)
RUNTIME = {"backend": "process", "host": "worker-1.example", "id": "i-0123456789abcdef"}


def run() -> list[Figure]:
    """All figures. Memory first: later the process would grow into what it has freed."""
    return [*memory(), *deciding(), *asyncio.run(restarting())]


def memory() -> list[Figure]:
    """What a live session takes, its share of its task's row included."""
    rows = [encode(row) for row in table_rows(LIVE // SAMPLES)]
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    table = Table(0)
    table.fill([row for row in map(sessions.CODEC.decode, rows) if isinstance(row, TaskState | SessionState)])
    gc.collect()
    grown = process.memory_info().rss - before
    assert len(table.sessions()) == LIVE
    return [
        Figure("memory of a live session", grown / LIVE, "bytes"),
        Figure("of it on the log", sum(map(len, rows)) / LIVE, "bytes"),
    ]


def deciding() -> list[Figure]:
    """Facts a second of CPU, the best of three."""
    rates = [rate() for _ in range(3)]
    return [Figure("facts decided", max(rates), "/s", "≥ 20,000")]


@dataclass
class Written:
    """A fact as a consumer gets it."""

    value: bytes | None
    headers: kafka.Headers
    topic: str = ""
    partition: int = 0
    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None


def written(fact: Fact, keys: ClaimKeys) -> Written:
    value = encode(fact)
    named = ticket_of(fact.claim_id) if isinstance(fact, ClaimFact) else None
    if named is None or not isinstance(fact, ClaimFact):
        return Written(value, ())
    return Written(value, headers(keys.key(fact.session_id, fact.attempt, *named), value))


def rate() -> float:
    """One table from its first fact to its last."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        ensure_keys_file(Path(folder) / "keys.json")
        keys = ClaimKeys(Path(folder) / "keys.json")
        script = [given if isinstance(given, SlotAssigned) else written(given, keys) for given in lives(TASKS)]
        return _rate(script, keys)


def _rate(script: Sequence[Written | SlotAssigned], keys: ClaimKeys) -> float:
    facts = sum(isinstance(given, Written) for given in script)
    table = Table(0)
    began = time.process_time()
    batch = Batch()
    for now, given in enumerate(script):
        known = events.CODEC.decode(given.value or b"") if isinstance(given, Written) else given
        assert not isinstance(known, UnknownRecord)
        if isinstance(known, ClaimFact) and isinstance(given, Written):
            assert is_proven(known, given, table.session(known.session_id), keys)
        decision = decide(table, known, now)
        batch_of = Batch.of(decision)
        if not batch.fits(batch_of):
            batch = Batch()
        table.apply(decision)
        batch.add(batch_of)
    return facts / (time.process_time() - began)


async def restarting() -> list[Figure]:
    """Seconds from a process's start to its first decisions, with all its partitions' tables to read."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        data = Path(folder)
        broker = Broker(data, announce=report.say)
        await asyncio.to_thread(broker.start)
        try:
            write_env_file(data / ENV_FILE, {"POLAR_KAFKA": broker.bootstrap, "POLAR_NAMESPACE": "bench"})
            settings = load(data)
            ensure_keys_file(settings.keys_path)
            await admin.apply(settings, catalogue.FIXED, embedded=True)
            await write(settings)
            took, cpu_s = await until_decided(settings, folder)
        finally:
            await asyncio.to_thread(broker.stop)
    return [
        Figure(f"restart with {LIVE:,} live sessions", took, "s", f"≤ {WANTED_S}"),
        Figure("CPU of it", cpu_s, "s"),
    ]


async def write(settings: Settings) -> None:
    """The table as a coordinator has left it, and facts that it hadn't read: a new task in every partition."""
    report.say(f"writing {LIVE:,} sessions")
    producer = LogProducer(settings)
    await producer.start()
    try:
        rows = list(table_rows(LIVE // SAMPLES))
        for some in (rows[at : at + COMMIT] for at in range(0, len(rows), COMMIT)):
            sent = [producer.send(sessions.TOPIC, row, key=sessions.key_of(row), task_id=row.task_id) for row in some]
            await asyncio.gather(*sent)
        for partition in range(sessions.TOPIC.embedded_partitions):
            await producer.send(sessions.TOPIC, Position(0, LIVE), key="offset", partition=partition)
        for task_id in new_tasks():
            fact = TaskSubmitted(f"{task_id}.f", task_id, 1, "0" * 64, PLAN, body=BODY)
            await producer.send(events.TOPIC, fact, key=task_id, task_id=task_id)
    finally:
        await producer.stop()


async def until_decided(settings: Settings, data: str) -> tuple[float, float]:
    """Start a coordinator; seconds until every new task has its rows, and the CPU that it took."""
    awaited = set(new_tasks())
    all_decided = asyncio.Event()

    def decided(row: sessions.Row, _: object) -> None:
        if isinstance(row, TaskState):
            awaited.discard(row.task_id)
        if not awaited:
            all_decided.set()

    follower = Follower(settings, sessions.TOPIC, decided, since=Since.END, committed=True)
    await follower.start()
    try:
        began = time.monotonic()
        with child("-m", "polar.cli", "worker", "coordinator", "--data", data) as coordinator:
            async with asyncio.timeout(GIVE_UP_S):
                await all_decided.wait()
            return time.monotonic() - began, cpu(psutil.Process(coordinator.pid))
    finally:
        await follower.stop()


def new_tasks() -> list[str]:
    """A task id for every partition."""
    count = sessions.TOPIC.embedded_partitions
    by_partition = {partition_of_task(task_id, count): task_id for task_id in (f"new-{n}" for n in range(100))}
    return list(by_partition.values())


def table_rows(tasks: int) -> Iterator[TaskState | SessionState]:
    """Live sessions: 17 of 20 tasks wait, one is ready to run, one runs, one has run."""
    for number in range(tasks):
        task_id = f"task-{number:06}"
        yield TaskState(task_id, SAMPLES, "0" * 64, BODY, plan=PLAN)
        for index in range(SAMPLES):
            queued = SessionState(session_id_of(task_id, index), task_id, index, Phase.QUEUED, number)
            made = replace(queued, phase=Phase.READY, runtime=RUNTIME, init_claim_id=f"i-{number:016x}")
            claim = f"r-{number:012x}{index:04x}"
            runs = replace(made, phase=Phase.RUNNING, run_claim_id=claim, log_offset=10 * number)
            match number % 20:
                case 0:
                    yield made
                case 1:
                    yield replace(runs, claim_id=claim, worker_id="worker-1")
                case 2:
                    yield replace(runs, phase=Phase.RAN, status=Status.COMPLETED, exit_code=0)
                case _:
                    yield queued


def lives(tasks: int) -> Iterator[Fact | SlotAssigned]:
    """All that happens to sessions whose tasks come one after the other; the n-th input happens at time n."""
    now = 0
    for number in range(tasks):
        task_id = f"task-{number:06}"
        yield TaskSubmitted(f"{task_id}.f", task_id, SAMPLES, "0" * 64, PLAN, body=BODY)
        sessions = [session_id_of(task_id, index) for index in range(SAMPLES)]
        since = dict.fromkeys(sessions, now)
        now += 1
        for stage in Stage:
            for session_id in sessions:
                inputs = list(worked(session_id, stage, since[session_id]))
                yield from inputs
                now += len(inputs)
                since[session_id] = now - 1
        now += len(sessions)
        for session_id in sessions:
            yield TrajectoryEmitted(f"{session_id}.t", session_id, 1, 1, 400, 3, Status.COMPLETED, None, 1.0)


def worked(session_id: str, stage: Stage, since: int) -> Iterator[Fact | SlotAssigned]:
    """One stage of a session that waited since then: a slot, a claim, and what the worker reports."""
    claim = new_claim_id(stage, ticket_id(since, 1))
    yield SlotAssigned(stage, PLAN.pool, "worker-1", 0)
    yield Claimed(f"{claim}.c", session_id, 1, stage, claim, "worker-1")
    told = (f"{claim}.f", session_id, 1, claim)
    match stage:
        case Stage.INIT:
            yield InitFinished(*told, runtime=RUNTIME, duration_ms=900)
        case Stage.RUN:
            yield RunFinished(
                *told, Status.COMPLETED, 0, artifacts={"agent_log": "blob:sha256/" + "0" * 64}, duration_ms=9000
            )
        case Stage.EVALUATE:
            yield Evaluated(*told, reward=1.0, duration_ms=900)


if __name__ == "__main__":
    report.main(__doc__, run)
