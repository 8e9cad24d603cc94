"""A runtime that nobody needs is gone at once, unless it isn't ours or is in our hand. Real worker, real Kafka."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from consumers.runtimes import proctree
from consumers.runtimes.base import Exec, Labels, RuntimeFault
from consumers.runtimes.process import ProcessBackend
from consumers.stages import reaping
from tests.consumers.stages.coordinating import Coordinator, eventually, shell, ticket, working
from topics.environment.settings import Settings
from topics.events import Stopped
from topics.types.session import Stage
from topics.types.task import RuntimeSpec

ALL = list(Stage)
SOON_S = 2.0
"""What a cancel promises; the worker's own part takes milliseconds."""


@pytest.fixture(autouse=True)
def _no_reaping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "PERIOD_S", 600.0)


@pytest.fixture
def backend(settings: Settings) -> ProcessBackend:
    return ProcessBackend(settings.data / "runtimes" / settings.namespace)


async def names(backend: ProcessBackend) -> set[str]:
    return {found.labels.claim_id for found in await backend.labelled()}


async def gone(backend: ProcessBackend, claim_id: str) -> None:
    async with asyncio.timeout(15):
        while claim_id in await names(backend):
            await asyncio.sleep(0.01)


async def made(backend: ProcessBackend, claim_id: str) -> dict[str, str]:
    return dict((await backend.create(Labels("any", "t.0", 1, claim_id), RuntimeSpec())).handle)


async def test_a_discarded_runtime_is_gone_at_once_with_all_that_runs_in_it(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend
) -> None:
    mark = uuid.uuid4().hex
    handle = await made(backend, "i-mine")
    elsewhere = {**await made(backend, "i-other"), "host": "another-host"}
    left = await backend.attach(handle, "r-dead", RuntimeSpec())
    program = asyncio.create_task(left.exec(Exec("sleep 60", env={"MARK": mark})))
    async with working(settings, [Stage.RUN]), working(settings, [Stage.INIT]):
        await coordinator.partition(Stage.RUN)
        await eventually(lambda: proctree.marked("MARK", mark))
        began = time.monotonic()
        await coordinator.discard("t.0", elsewhere)
        await coordinator.discard("t.0", {"backend": "unheard-of", "id": "no/claim"})
        for _ in range(2):
            await coordinator.discard("t.0", handle)
        await gone(backend, "i-mine")
        assert time.monotonic() - began < SOON_S
        assert proctree.marked("MARK", mark) == set()
        with pytest.raises(RuntimeFault, match="killed"):
            await program
        assert await names(backend) == {"i-other"}


async def test_a_runtime_in_hand_is_discarded_when_it_has_left_it(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend
) -> None:
    mark = uuid.uuid4().hex
    task = shell("busy", "sleep 60", agent={"env": {"MARK": mark}})
    idle = await made(backend, "i-idle")
    async with working(settings, ALL):
        runtime = await coordinator.initialised(task)
        claimed = await coordinator.granted(ticket(task, Stage.RUN, runtime=runtime))
        await eventually(lambda: proctree.marked("MARK", mark))
        await coordinator.discard("busy.0", runtime)
        await coordinator.discard("t.0", idle)  # heard after the other
        await gone(backend, "i-idle")
        assert await names(backend) == {runtime["id"]}
        assert proctree.marked("MARK", mark)
        began = time.monotonic()
        await coordinator.revoke(claimed.claim_id, "busy.0")
        await coordinator.fact(Stopped, "busy.0")
        told_s = time.monotonic() - began
        assert proctree.marked("MARK", mark) == set()
        await gone(backend, runtime["id"])
    assert told_s < SOON_S, "a cancelled run's trajectory waits for this"


async def test_many_discards_are_one_look_and_all_go(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend
) -> None:
    handles = [await made(backend, f"i-{n}") for n in range(60)]
    async with working(settings, [Stage.RUN]):
        await coordinator.partition(Stage.RUN)
        await asyncio.gather(*(coordinator.discard("t.0", handle) for handle in handles))
        async with asyncio.timeout(15):
            while await names(backend):
                await asyncio.sleep(0.01)
