"""A stranger who can write to `polar.events` decides nothing: facts about a claim count only from the worker that holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from consumers.coordinator.coordinator import run_coordinator
from consumers.evaluators.base import Case, Verdict
from consumers.fanout import plan_of
from consumers.stages.worker import run_worker
from polar.table import SessionTable
from tests.integration.conftest import records_of
from tests.waiting import eventually
from topics import completions, control, events, sessions, workers
from topics.completions import Build
from topics.contract import catalogue
from topics.control import Revoke
from topics.environment.settings import Settings
from topics.events import Claimed, Evaluated, Fact, HandedBack, InitFinished, RunFinished, Stopped, TaskSubmitted
from topics.log import admin
from topics.log.producer import LogProducer
from topics.sessions import Position
from topics.types.session import Phase, SessionState, Stage, Status
from topics.types.task import TaskRequest, body_hash
from topics.workers import Heartbeat, StageSlots

DEADLINE_S = 60.0
POOL = "default"


class Patient:
    """An evaluator that gives 0.25 once a file is there."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._file = Path(config["file"])

    async def evaluate(self, case: Case) -> Verdict:
        while not self._file.exists():
            await asyncio.sleep(0.05)
        return Verdict(0.25)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"proxy_url": "http://127.0.0.1:9", "trust_tasks": True})


@asynccontextmanager
async def system(settings: Settings) -> AsyncIterator[None]:
    """A coordinator, and a worker of all stages."""
    stop = asyncio.Event()
    running = [
        asyncio.create_task(run_coordinator(settings, stop)),
        asyncio.create_task(run_worker(settings, list(Stage), pool=POOL, concurrency=2, stop=stop)),
    ]
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*running), DEADLINE_S)


async def submit(log: LogProducer, file: Path) -> None:
    body = {
        "task_id": "t",
        "instruction": "do",
        "agent": {"harness": "shell", "custom_shell": {"command": "true"}},
        "runtime": {"backend": "process"},
        "evaluator": {"strategy": "tests.integration.test_forged_facts:Patient", "config": {"file": str(file)}},
    }
    task = TaskRequest.model_validate(body)
    canonical = task.canonical()
    await send(log, TaskSubmitted("f", "t", 1, body_hash(canonical), plan_of(task), body=canonical))


async def send(log: LogProducer, fact: Fact) -> int:
    """The fact's offset."""
    return (await log.send(events.TOPIC, fact, key=events.key_of(fact), task_id="t")).offset


async def until_decided(settings: Settings, offset: int) -> None:
    """Wait until the coordinator has committed what followed from the fact at this offset."""

    async def is_past() -> bool:
        return any(each.next_offset > offset for each in await records_of(settings, sessions.TOPIC, Position))

    await eventually(is_past, DEADLINE_S, every_s=0.2)


async def test_a_forged_reward_for_a_live_session_changes_nothing_and_the_true_one_counts(
    settings: Settings, log: LogProducer, tmp_path: Path
) -> None:
    """The stranger has read the session's row, and so knows its claim."""
    file = tmp_path / "go"
    async with system(settings), SessionTable(settings) as table:
        await submit(log, file)
        row = await phase(table, Phase.EVALUATING)
        assert row.claim_id is not None
        about = ("forged", "t.0", row.attempt, row.claim_id)
        forged: list[Fact] = [
            Evaluated(*about, reward=1.0),
            Stopped(*about),
            HandedBack(*about),
            Claimed("forged", "t.0", row.attempt, Stage.EVALUATE, row.claim_id, "stranger"),
            RunFinished(*about, Status.COMPLETED, 0),
            InitFinished(*about, runtime={"id": "elsewhere"}),
        ]
        offsets = [await send(log, fact) for fact in forged]
        await until_decided(settings, offsets[-1])
        assert table.sessions["t"][0] == row
        assert row.claim_id not in {revoke.claim_id for revoke in await records_of(settings, control.TOPIC, Revoke)}
        file.touch()
        ended = await phase(table, Phase.BUILDING)
    assert (ended.status, ended.reward, ended.attempt, ended.evaluations_lost) == (Status.COMPLETED, 0.25, 1, 0)
    assert [build.reward for build in await records_of(settings, completions.TOPIC, Build)] == [0.25]


async def test_the_first_claim_of_a_ticket_is_a_stranger_s_and_is_not_granted(
    settings: Settings, log: LogProducer, tmp_path: Path
) -> None:
    """The ticket is for a worker that is slower than the stranger, who never saw it."""
    await admin.apply(settings, catalogue.of_pool(POOL), embedded=True)
    stop = asyncio.Event()
    coordinating = asyncio.create_task(run_coordinator(settings, stop))
    slots = [StageSlots(stage, POOL, slots=1, free=1, partitions=[0]) for stage in (Stage.INIT, Stage.RUN)]
    slow = Heartbeat("slow", "worker", "host", 1, slots)
    async with SessionTable(settings) as table:
        await submit(log, tmp_path / "go")
        await phase(table, Phase.QUEUED)
        await log.send(workers.TOPIC, slow, key="slow")
        assert await table.until(lambda: table.sessions["t"][0].releases > 0, DEADLINE_S)
        for claim_id in ("i-0123456789abcdef", "i-0.1-0123456789abcdef"):
            offset = await send(log, Claimed(claim_id, "t.0", 1, Stage.INIT, claim_id, "stranger"))
        await until_decided(settings, offset)
        revoked = [revoke.claim_id for revoke in await records_of(settings, control.TOPIC, Revoke)]
        assert revoked == ["i-0123456789abcdef", "i-0.1-0123456789abcdef"]
        row = table.sessions["t"][0]
        assert (row.phase, row.claim_id, row.worker_id) == (Phase.QUEUED, None, None)
    stop.set()
    await asyncio.wait_for(coordinating, DEADLINE_S)


async def phase(table: SessionTable, wanted: Phase) -> SessionState:
    """The row of session `t.0` in this phase."""

    def found() -> SessionState | None:
        row = table.sessions.get("t", {}).get(0)
        return row if row is not None and row.phase is wanted else None

    assert await table.until(lambda: found() is not None, DEADLINE_S), table.sessions
    row = found()
    assert row is not None
    return row
