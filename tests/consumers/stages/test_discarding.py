"""A runtime that nobody needs is gone at once, unless it is another host's or a claim still uses it. Real worker, real Kafka."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest

from consumers.runtimes.base import Labelled, SandboxError
from consumers.runtimes.process import ProcessBackend
from consumers.stages import reaping
from consumers.stages.claim_runner import ClaimRunner
from consumers.stages.discarding import Discards
from consumers.stages.worker_context import WorkerContext
from tests.consumers.stages.conftest import Host
from tests.consumers.stages.coordinating import ALL, PATIENCE_S, Coordinator, living, shell, ticket, working
from tests.waiting import eventually
from topics.control import Discard
from topics.environment.settings import Settings
from topics.events import Evaluated, Stopped
from topics.log.producer import LogProducer
from topics.types.session import Stage

SOON_S = 2.0
"""What a cancel promises; the worker's own part takes milliseconds."""


@pytest.fixture(autouse=True)
def _no_reaping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "PERIOD_S", 600.0)


async def test_a_discarded_runtime_is_gone_at_once_with_all_that_runs_in_it(
    settings: Settings, coordinator: Coordinator, host: Host
) -> None:
    mark = uuid.uuid4().hex
    handle = await host.left_by("i-mine")
    elsewhere = {**await host.left_by("i-other"), "host": "another-host"}
    program = await host.program(handle, "r-dead", mark)
    async with working(settings, [Stage.RUN]), working(settings, [Stage.INIT]):
        await coordinator.partition(Stage.RUN)
        began = time.monotonic()
        await coordinator.discard("t.0", elsewhere)
        await coordinator.discard("t.0", {"backend": "unheard-of", "id": "no/claim"})
        for _ in range(2):
            await coordinator.discard("t.0", handle)
        await host.has_only("i-other")
        assert time.monotonic() - began < SOON_S
        assert living(mark) == set()
        with pytest.raises(SandboxError, match="killed"):
            await program


async def test_a_runtime_that_a_claim_uses_is_discarded_when_the_claim_has_ended(
    settings: Settings, coordinator: Coordinator, host: Host
) -> None:
    mark = uuid.uuid4().hex
    task = shell("busy", "sleep 60", agent={"env": {"MARK": mark}})
    idle = await host.left_by("i-idle")
    async with working(settings, ALL):
        runtime = await coordinator.initialised(task)
        claimed = await coordinator.granted(ticket(task, Stage.RUN, runtime=runtime))
        await eventually(lambda: living(mark), PATIENCE_S)
        await coordinator.discard("busy.0", runtime)
        await coordinator.discard("t.0", idle)  # read after the other
        await host.has_only(runtime["id"])
        assert living(mark)
        began = time.monotonic()
        await coordinator.revoke(claimed.claim_id, "busy.0")
        assert (await coordinator.fact(Stopped, "busy.0")).claim_id == claimed.claim_id
        stopped_s = time.monotonic() - began
        assert living(mark) == set()
        await host.has_only()
    assert stopped_s < SOON_S, "a cancelled run's trajectory waits for this"


async def test_an_evaluator_leaves_the_runtime_to_the_coordinator(
    settings: Settings, coordinator: Coordinator, host: Host
) -> None:
    """A worker that was frozen can't know that its claim is lost: the next evaluation needs the runtime after its verdict."""
    task = shell("twice", "true")
    async with working(settings, ALL):
        runtime, ran = await coordinator.run(task)
        evaluation = ticket(task, Stage.EVALUATE, runtime=runtime, status=ran.status, exit_code=ran.exit_code)
        for nth in range(2):
            await coordinator.granted(evaluation)
            assert (await coordinator.fact(Evaluated, "twice.0", nth)).reward == 1.0
            await eventually(lambda: not coordinator.held(), PATIENCE_S)  # it has tidied up
        await host.has_only(runtime["id"])
        await coordinator.discard("twice.0", runtime)
        await host.has_only()


class CountingBackend(ProcessBackend):
    """A runtime plug-in that counts how often its host is looked over."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.parent / "counted")
        self.looks = 0

    async def labelled(self) -> list[Labelled]:
        self.looks += 1
        return await super().labelled()


async def test_many_discards_are_one_look_and_all_go(settings: Settings) -> None:
    context = WorkerContext(settings, lambda: True, lambda: None)
    backend = context.backend(f"{__name__}:CountingBackend")
    assert isinstance(backend, CountingBackend)
    host = Host(backend)
    handles = [await host.left_by(f"i-{number}") for number in range(60)]
    discards = Discards(context, ClaimRunner(LogProducer(settings), "worker-1", lambda: None))
    removing = asyncio.create_task(discards.run())
    for handle in handles:
        discards.add(Discard("t.0", handle["id"], handle))
    await eventually(lambda: discards.removed == len(handles), PATIENCE_S)
    removing.cancel()
    assert backend.looks == 1
    assert await host.claims() == set()
