"""Runtimes that nobody needs are removed, those that someone may need are not. Real Kafka; the rounds come faster than in life."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

import pytest
from msgspec.structs import replace

from consumers.runtimes import proctree
from consumers.runtimes.base import Exec, Labelled, Labels, RuntimeFault
from consumers.runtimes.process import ProcessBackend
from consumers.stages import reaping
from consumers.stages.reaping import is_needed
from tests.consumers.stages.coordinating import Coordinator, eventually, shell, ticket, working
from topics.environment.settings import Settings
from topics.types.session import Phase, SessionState, Stage
from topics.types.task import RuntimeSpec

ALL = list(Stage)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "PERIOD_S", 0.2)
    monkeypatch.setattr(reaping, "UNHELD_S", 3.0)  # heartbeats come every 2 s
    monkeypatch.setattr(reaping, "REVOKED_S", 0.5)


@pytest.fixture
def backend(settings: Settings) -> ProcessBackend:
    return ProcessBackend(settings.data / "runtimes" / settings.namespace)


async def left_by(backend: ProcessBackend, claim_id: str, session_id: str) -> dict[str, str]:
    """A runtime whose maker is gone."""
    made = await backend.create(Labels("any", session_id, 1, claim_id), RuntimeSpec())
    return dict(made.handle)


async def names(backend: ProcessBackend) -> set[str]:
    return {found.labels.claim_id for found in await backend.labelled()}


async def test_a_runtime_goes_when_neither_heartbeat_nor_table_holds_it(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend
) -> None:
    kept = await left_by(backend, "i-ready", "kept.0")
    await left_by(backend, "i-being-made", "made.0")
    await left_by(backend, "i-older", "again.0")
    await left_by(backend, "i-ended", "ended.0")
    await left_by(backend, "i-unknown", "unknown.0")
    (backend._root / "i-half-made").mkdir()
    await coordinator.row(SessionState("kept.0", "kept", 0, Phase.READY, 0, runtime=kept))
    await coordinator.row(SessionState("made.0", "made", 0, Phase.INIT, 0, claim_id="i-being-made"))
    await coordinator.row(SessionState("again.0", "again", 0, Phase.READY, 0, attempt=2, runtime=kept))
    await coordinator.row(SessionState("ended.0", "ended", 0, Phase.ENDED, 0))
    async with working(settings, ALL):
        async with asyncio.timeout(15):
            while await names(backend) != {"i-ready", "i-being-made"}:
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.5 * reaping.UNHELD_S)
        assert await names(backend) == {"i-ready", "i-being-made"}


async def test_a_runtime_that_is_being_made_is_safe_without_a_row(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend
) -> None:
    """Asked for, not granted: only the heartbeats know of it, to another worker's reaper too."""
    task = shell("slow", "true", runtime={"prepare": [{"type": "exec", "command": "sleep 60"}]})
    async with working(settings, [Stage.INIT]), working(settings, [Stage.RUN]):
        await coordinator.release(ticket(task, Stage.INIT))
        async with asyncio.timeout(15):
            while not (made := await names(backend)):
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.5 * reaping.UNHELD_S)
        assert await names(backend) == made


async def test_what_a_worker_made_that_died_before_it_could_say_so_is_gone(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend
) -> None:
    """The worker is a process, killed between making the runtime and its InitFinished; what the table says follows it as in life."""
    mark = uuid.uuid4().hex
    prepare = [{"type": "exec", "command": "setsid sleep 60 & sleep 60", "env": {"MARK": mark}}]
    task = shell("crashed", "true", runtime={"prepare": prepare})
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "polar.cli", "worker", "init",
        env={**os.environ, **environment(settings)}, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        claimed = await coordinator.granted(ticket(task, Stage.INIT))
        await eventually(lambda: len(proctree.marked("MARK", mark)) >= 2)
    finally:
        dying.kill()
        await dying.wait()
    in_hand = SessionState("crashed.0", "crashed", 0, Phase.INIT, 0, claim_id=claimed.claim_id)
    await coordinator.row(in_hand)
    async with working(settings, [Stage.RUN]):
        await eventually(lambda: not proctree.marked("MARK", mark))
        await asyncio.sleep(1.5 * reaping.UNHELD_S)
        assert await names(backend) == {claimed.claim_id}, "its lease hasn't ended yet"
        await coordinator.row(replace(in_hand, phase=Phase.QUEUED, attempt=2, claim_id=None))
        async with asyncio.timeout(15):
            while await names(backend):
                await asyncio.sleep(0.05)


def environment(settings: Settings) -> dict[str, str]:
    """These settings for a process."""
    told = settings.model_dump(include={"data", "kafka", "namespace", "replication", "min_insync", "proxy_url"})
    return {f"POLAR_{name.upper()}": str(value) for name, value in told.items()}


async def test_a_revoke_kills_what_a_dead_worker_left_and_removes_what_it_made(
    settings: Settings, coordinator: Coordinator, backend: ProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "UNHELD_S", 600.0)
    mark = uuid.uuid4().hex
    handle = await left_by(backend, "i-dead", "dead.0")
    await left_by(backend, "i-late", "late.0")
    await coordinator.row(SessionState("late.0", "late", 0, Phase.READY, 0, runtime={**handle, "id": "i-late"}))
    left = await backend.attach(handle, "r-dead", RuntimeSpec())
    program = asyncio.create_task(left.exec(Exec("sleep 60", env={"MARK": mark})))
    async with working(settings, [Stage.RUN]):
        await coordinator.partition(Stage.RUN)
        await eventually(lambda: proctree.marked("MARK", mark))
        await coordinator.revoke("r-dead", "dead.0", "lost")
        with pytest.raises(RuntimeFault, match="killed"):
            await program
        assert proctree.marked("MARK", mark) == set()
        assert await names(backend) == {"i-dead", "i-late"}
        await coordinator.revoke("i-late", "late.0", "taken")
        await coordinator.revoke("i-dead", "dead.0", "lost")
        async with asyncio.timeout(15):
            while await names(backend) != {"i-late"}:
                await asyncio.sleep(0.05)
        await coordinator.revoke("no/claim", "x.0", "lost")
        await asyncio.sleep(3 * reaping.REVOKED_S)
        assert await names(backend) == {"i-late"}


@pytest.mark.parametrize("phase", list(Phase))
def test_a_row_keeps_the_runtime_that_its_session_works_in(phase: Phase) -> None:
    handle = {"backend": "process", "host": "here", "id": "i-1"}
    runtime = Labelled(Labels("n", "t.0", 1, "i-1"), handle)
    of_claim = SessionState("t.0", "t", 0, phase, 0, claim_id="i-1")
    of_row = SessionState("t.0", "t", 0, phase, 0, claim_id="r-1", runtime=handle)
    another = SessionState("t.0", "t", 0, phase, 0, claim_id="r-1", runtime={**handle, "id": "i-2"})
    assert is_needed(runtime, of_claim) is (phase is Phase.INIT)
    assert is_needed(runtime, of_row) is (phase in {Phase.READY, Phase.RUNNING, Phase.RAN, Phase.EVALUATING})
    assert not is_needed(runtime, another)
    assert not is_needed(runtime, None)
