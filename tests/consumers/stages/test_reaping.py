"""Runtimes that nobody needs are removed, and those that someone may need are not. Real Kafka; the rounds come faster than in life."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

import pytest
from msgspec.structs import replace

from consumers.runtimes.base import Labelled, Labels, SandboxError
from consumers.stages import reaping
from consumers.stages.reaping import is_needed
from tests.consumers.stages.conftest import Host
from tests.consumers.stages.coordinating import ALL, PATIENCE_S, Coordinator, living, shell, ticket, working
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.types.session import Phase, SessionState, Stage


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "PERIOD_S", 0.2)
    monkeypatch.setattr(reaping, "UNSEEN_S", 3.0)  # heartbeats come every 2 s
    monkeypatch.setattr(reaping, "REVOKED_S", 0.5)


async def test_a_runtime_goes_when_neither_heartbeat_nor_table_holds_it(
    settings: Settings, coordinator: Coordinator, host: Host
) -> None:
    kept = await host.left_by("i-ready", "kept.0")
    for claim_id, session_id in (
        ("i-being-made", "made.0"),
        ("i-older", "again.0"),
        ("i-ended", "ended.0"),
        ("i-unknown", "unknown.0"),
    ):
        await host.left_by(claim_id, session_id)
    (host.backend.folders.root / "i-half-made").mkdir()
    await coordinator.row(SessionState("kept.0", "kept", 0, Phase.READY, 0, runtime=kept))
    await coordinator.row(SessionState("made.0", "made", 0, Phase.INIT, 0, claim_id="i-being-made"))
    await coordinator.row(SessionState("again.0", "again", 0, Phase.READY, 0, attempt=2, runtime=kept))
    await coordinator.row(SessionState("ended.0", "ended", 0, Phase.ENDED, 0))
    async with working(settings, ALL):
        await host.has_only("i-ready", "i-being-made")
        await asyncio.sleep(1.5 * reaping.UNSEEN_S)
        assert await host.claims() == {"i-ready", "i-being-made"}


async def test_a_runtime_that_is_being_made_is_safe_without_a_row(
    settings: Settings, coordinator: Coordinator, host: Host
) -> None:
    """Its claim is requested and not granted: only heartbeats show it, also to another worker's reaper."""
    task = shell("slow", "true", runtime={"prepare": [{"type": "exec", "command": "sleep 60"}]})
    async with working(settings, [Stage.INIT]), working(settings, [Stage.RUN]):
        await coordinator.release(ticket(task, Stage.INIT))
        async with asyncio.timeout(15):
            while not (made := await host.claims()):
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.5 * reaping.UNSEEN_S)
        assert await host.claims() == made


async def test_what_a_worker_made_that_died_before_it_could_report_is_gone(
    settings: Settings, coordinator: Coordinator, host: Host
) -> None:
    """The worker is a process, killed between making the runtime and its InitFinished; the table follows as in life."""
    mark = uuid.uuid4().hex
    prepare = [{"type": "exec", "command": "setsid sleep 60 & sleep 60", "env": {"MARK": mark}}]
    task = shell("crashed", "true", runtime={"prepare": prepare})
    names = ("data", "kafka", "namespace", "replication", "min_insync", "proxy_url", "trust_tasks")
    environment = {f"POLAR_{name.upper()}": str(getattr(settings, name)) for name in names}
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "polar.cli", "worker", "init",
        env={**os.environ, **environment}, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        claimed = await coordinator.granted(ticket(task, Stage.INIT))
        await eventually(lambda: len(living(mark)) >= 2, PATIENCE_S)
    finally:
        dying.kill()
        await dying.wait()
    row = SessionState("crashed.0", "crashed", 0, Phase.INIT, 0, claim_id=claimed.claim_id)
    await coordinator.row(row)
    async with working(settings, [Stage.RUN]):
        await eventually(lambda: not living(mark), PATIENCE_S)
        await asyncio.sleep(1.5 * reaping.UNSEEN_S)
        assert await host.claims() == {claimed.claim_id}, "its lease hasn't ended yet"
        await coordinator.row(replace(row, phase=Phase.QUEUED, attempt=2, claim_id=None))
        await host.has_only()


async def test_a_revoke_kills_what_a_dead_worker_left_and_removes_what_it_made(
    settings: Settings, coordinator: Coordinator, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaping, "UNSEEN_S", 600.0)
    mark = uuid.uuid4().hex
    handle = await host.left_by("i-dead", "dead.0")
    late = await host.left_by("i-late", "late.0")
    await coordinator.row(SessionState("late.0", "late", 0, Phase.READY, 0, runtime=late))
    program = await host.program(handle, "r-dead", mark)
    async with working(settings, [Stage.RUN]):
        await coordinator.partition(Stage.RUN)
        await coordinator.revoke("r-dead", "dead.0", "lost")
        with pytest.raises(SandboxError, match="killed"):
            await program
        assert living(mark) == set()
        assert await host.claims() == {"i-dead", "i-late"}
        await coordinator.revoke("i-late", "late.0", "taken")
        await coordinator.revoke("i-dead", "dead.0", "lost")
        await host.has_only("i-late")
        await coordinator.revoke("no/claim", "x.0", "lost")
        await asyncio.sleep(3 * reaping.REVOKED_S)
        assert await host.claims() == {"i-late"}


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
