"""How a worker goes: what it has in hand gets the time that it was promised, and costs no attempt. Real worker, real Kafka."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from pathlib import Path

import pytest

from consumers.stages.worker import run_worker
from tests.consumers.stages.coordinating import ALL, PATIENCE_S, POOL, Coordinator, living, shell, ticket, working
from tests.waiting import eventually
from topics import stages
from topics.environment.settings import Settings
from topics.events import Claimed, HandedBack, RunFinished
from topics.types.session import Stage, Status
from topics.types.task import TaskRequest

RUN = Stage.RUN


class Held:
    """A session whose harness works until the test lets it end."""

    def __init__(self, task_id: str, folder: Path) -> None:
        self._go = folder / f"{task_id}.go"
        self._mark = uuid.uuid4().hex
        wait = f"while [ ! -e {self._go} ]; do sleep 0.05; done"
        self.task: TaskRequest = shell(task_id, wait, agent={"env": {"MARK": self._mark}})

    def living(self) -> set[int]:
        return living(self._mark)

    def let_go(self) -> None:
        self._go.touch()

    async def begun(self, coordinator: Coordinator) -> str:
        """Run it; the claim of its run."""
        runtime = await coordinator.initialised(self.task)
        claimed = await coordinator.granted(ticket(self.task, RUN, runtime=runtime))
        await eventually(self.living, PATIENCE_S)
        return claimed.claim_id


async def test_a_drained_worker_takes_no_more_finishes_what_it_has_and_ends(
    settings: Settings, coordinator: Coordinator, tmp_path: Path
) -> None:
    held, late = Held("held", tmp_path), shell("late", "true")
    worker = asyncio.create_task(run_worker(settings, ALL, pool=POOL, concurrency=2, stop=asyncio.Event()))
    claim_id = await held.begun(coordinator)
    partition = await coordinator.partition(Stage.INIT)
    await coordinator.drain("worker-of-another-host")
    assert not coordinator.beats[-1].leaving
    await coordinator.drain(coordinator.beats[-1].worker_id)
    await eventually(lambda: coordinator.beats[-1].leaving, PATIENCE_S)
    await eventually(lambda: not any(stage.partitions for stage in coordinator.beats[-1].stages), PATIENCE_S)
    await coordinator.log.send(
        stages.topic(Stage.INIT, POOL), ticket(late, Stage.INIT), key="late.0", partition=partition
    )
    assert coordinator.held() == {claim_id}
    held.let_go()
    assert (await coordinator.fact(RunFinished, "held.0")).status is Status.COMPLETED
    async with asyncio.timeout(15):
        await worker
    assert not coordinator.of(Claimed, "late.0")
    async with working(settings, [Stage.INIT]):
        await coordinator.fact(Claimed, "late.0")


@pytest.mark.parametrize("hurried", [False, True])
async def test_what_outlasts_the_grace_or_is_hurried_is_handed_back(
    settings: Settings, coordinator: Coordinator, tmp_path: Path, hurried: bool
) -> None:
    held, hurry = Held("held", tmp_path), asyncio.Event()
    grace_s = 60.0 if hurried else 1.0
    async with working(settings, ALL, grace_s=grace_s, hurry=hurry) as stop:
        claim_id = await held.begun(coordinator)
        told_at = time.monotonic()
        stop.set()
        await eventually(lambda: coordinator.beats[-1].leaving, PATIENCE_S)
        if hurried:
            assert held.living()
            hurry.set()
        handed = await coordinator.fact(HandedBack, "held.0")
        waited_s = time.monotonic() - told_at
        assert held.living() == set()
    assert handed.claim_id == claim_id
    assert hurried or waited_s >= grace_s
    assert waited_s < 15


async def test_what_ends_within_the_grace_is_reported_and_the_worker_is_gone_with_it(
    settings: Settings, coordinator: Coordinator, tmp_path: Path
) -> None:
    held = Held("held", tmp_path)
    async with working(settings, ALL, grace_s=60.0) as stop:
        await held.begun(coordinator)
        stop.set()
        await eventually(lambda: coordinator.beats[-1].leaving, PATIENCE_S)
        held.let_go()
    assert (await coordinator.fact(RunFinished, "held.0")).status is Status.COMPLETED
    assert not coordinator.of(HandedBack, "held.0")


async def test_a_worker_that_still_waits_for_kafka_goes_at_once(tmp_path: Path) -> None:
    stop = asyncio.Event()
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        nobody = Settings(kafka=f"127.0.0.1:{door.getsockname()[1]}", data=tmp_path)
        worker = asyncio.create_task(run_worker(nobody, [Stage.INIT], pool=POOL, concurrency=1, stop=stop))
        await asyncio.sleep(0.5)
        assert not worker.done()
        stop.set()
        async with asyncio.timeout(5):
            await worker
