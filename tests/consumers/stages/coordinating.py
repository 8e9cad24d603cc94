"""The coordinator's part, played by a test: it releases tickets, reads facts and heartbeats, and answers claims as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from consumers.runtimes import proctree
from consumers.stages.worker import run_worker
from tests.waiting import eventually
from topics import control, events, sessions, stages, workers
from topics.contract import catalogue
from topics.control import Discard, Drain, Grant, Revoke
from topics.environment.keys import ensure_keys_file
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, Fact, InitFinished, RunFinished
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.log.producer import LogProducer
from topics.stages import Ticket
from topics.types.session import SessionState, Stage, session_id_of
from topics.types.task import TaskRequest
from topics.workers import Heartbeat

POOL = "default"
PATIENCE_S = 120.0
"""For a worker's processes on a busy machine."""
ALL = list(Stage)

T = TypeVar("T")


def living(mark: str) -> set[int]:
    """Processes with `MARK=<mark>` in their environment."""
    return proctree.marked("MARK", mark)


@dataclass
class Coordinator:
    """Sees all facts and heartbeats in log order."""

    settings: Settings
    log: LogProducer
    facts: list[Fact] = field(default_factory=list)
    envelopes: list[Record] = field(default_factory=list)
    """The records that held the facts."""
    beats: list[Heartbeat] = field(default_factory=list)

    def _fact(self, fact: Fact, envelope: Record) -> None:
        self.facts.append(fact)
        self.envelopes.append(envelope)

    def _beat(self, sign: workers.Sign, _: object) -> None:
        if isinstance(sign, Heartbeat):
            self.beats.append(sign)

    def of(self, kind: type[T], session_id: str) -> list[T]:
        """A session's facts of one kind, in order; a fact sent twice comes twice."""
        return [f for f in self.facts if isinstance(f, kind) and getattr(f, "session_id", None) == session_id]

    async def fact(self, kind: type[T], session_id: str, nth: int = 0) -> T:
        return await eventually(lambda: next(iter(self.of(kind, session_id)[nth:]), None), PATIENCE_S)

    def held(self) -> set[str]:
        """Claims in the newest heartbeat."""
        return {claim for stage in self.beats[-1].stages for claim in stage.claims} if self.beats else set()

    async def partition(self, stage: Stage) -> int:
        """A partition of the queue that the worker reads."""

        def look() -> list[int] | None:
            stages_ = self.beats[-1].stages if self.beats else []
            return next((list(s.partitions) for s in stages_ if s.stage is stage and s.partitions), None)

        return (await eventually(look, PATIENCE_S))[0]

    async def release(self, ticket: Ticket) -> None:
        partition = await self.partition(ticket.stage)
        topic = stages.topic(ticket.stage, POOL)
        await self.log.send(topic, ticket, key=ticket.session_id, partition=partition)

    async def grant(self, claimed: Claimed) -> None:
        answer = Grant(claimed.session_id, claimed.attempt, claimed.claim_id, log_partition=3, log_offset=17)
        await self.log.send(control.TOPIC, answer, key=claimed.session_id)

    async def revoke(self, claim_id: str, session_id: str, reason: str = "cancelled") -> None:
        await self.log.send(control.TOPIC, Revoke(session_id, claim_id, reason), key=session_id)

    async def discard(self, session_id: str, runtime: dict[str, str]) -> None:
        answer = Discard(session_id, runtime["id"], runtime)
        await self.log.send(control.TOPIC, answer, key=session_id)

    async def drain(self, worker_id: str) -> None:
        await self.log.send(control.TOPIC, Drain(worker_id), key=worker_id)

    async def row(self, row: SessionState) -> None:
        await self.log.send(sessions.TOPIC, row, key=sessions.key_of(row), task_id=row.task_id)

    async def granted(self, ticket: Ticket) -> Claimed:
        """Release a ticket and grant its first claim."""
        await self.release(ticket)
        claimed = await self.fact(Claimed, ticket.session_id, len(self.of(Claimed, ticket.session_id)))
        await self.grant(claimed)
        return claimed

    async def initialised(self, task: TaskRequest, index: int = 0) -> dict[str, str]:
        """Take a session through init; its runtime."""
        await self.granted(ticket(task, Stage.INIT, index))
        finished = await self.fact(InitFinished, session_id_of(task.task_id, index))
        assert finished.error is None, finished.error
        assert finished.runtime is not None
        return finished.runtime

    async def run(self, task: TaskRequest, index: int = 0) -> tuple[dict[str, str], RunFinished]:
        """Take a session through init and run; its runtime and how the run ended."""
        runtime = await self.initialised(task, index)
        await self.granted(ticket(task, Stage.RUN, index, runtime=runtime))
        return runtime, await self.fact(RunFinished, session_id_of(task.task_id, index))

    async def evaluated(self, task: TaskRequest, index: int = 0) -> Evaluated:
        """Take a session through all three stages, and have its runtime discarded."""
        runtime, ran = await self.run(task, index)
        await self.granted(
            ticket(
                task,
                Stage.EVALUATE,
                index,
                runtime=runtime,
                status=ran.status,
                exit_code=ran.exit_code,
                error=ran.error,
            )
        )
        session_id = session_id_of(task.task_id, index)
        evaluated = await self.fact(Evaluated, session_id)
        await self.discard(session_id, runtime)
        return evaluated


def ticket(task: TaskRequest, stage: Stage, index: int = 0, *, budget_s: float = 60.0, **past: Any) -> Ticket:
    return Ticket(session_id_of(task.task_id, index), index, 1, stage, budget_s, body=task.canonical(), **past)


def shell(task_id: str, command: str, **changes: Any) -> TaskRequest:
    """A task whose harness is a shell command, unconfined: tests look at its files and processes."""
    agent = {"harness": "shell", "custom_shell": {"command": command}, **changes.pop("agent", {})}
    runtime = {"backend": "process", **changes.pop("runtime", {})}
    return TaskRequest.model_validate(
        {"task_id": task_id, "instruction": "Say hi.", "agent": agent, "runtime": runtime, **changes}
    )


@asynccontextmanager
async def coordinating(settings: Settings) -> AsyncIterator[Coordinator]:
    """The topics, and a coordinator that sees what is on them."""
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    coordinator = Coordinator(settings, LogProducer(settings))
    followers = [
        Follower(settings, events.TOPIC, coordinator._fact, since=Since.BEGINNING),
        Follower(settings, workers.TOPIC, coordinator._beat, since=Since.BEGINNING),
    ]
    await coordinator.log.start()
    try:
        for follower in followers:
            await follower.start()
        yield coordinator
    finally:
        for follower in followers:
            await follower.stop()
        await coordinator.log.stop(1.0)


@asynccontextmanager
async def working(
    settings: Settings, stages_: list[Stage], concurrency: int = 2, **leaving: Any
) -> AsyncIterator[asyncio.Event]:
    """A stage worker in this process; gives the event that stops it. `leaving`: how, as `run_worker` takes it."""
    stop = asyncio.Event()
    worker = asyncio.create_task(
        run_worker(settings, stages_, pool=POOL, concurrency=concurrency, stop=stop, **leaving)
    )
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(worker, 15)


def settings_for(kafka: str, namespace: str, data: Path, proxy_url: str) -> Settings:
    ensure_keys_file(data / "keys.json")
    return Settings(
        data=data, namespace=namespace, kafka=kafka, replication=1, min_insync=1, proxy_url=proxy_url, trust_tasks=True
    )
