"""Opened sessions through a real proxy, coordinator and builder, any of which may be away for a while. The engine is the scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI

from consumers.building.builder import run_builder
from consumers.coordinator.coordinator import run_coordinator
from polar import sessions
from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.table import SessionTable
from proxy.control import opening
from tests.proxy.conftest import Bench, proxied
from tests.waiting import eventually
from topics.environment.keys import ensure_keys_file
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.session import Phase, Status

DEADLINE_S = 30.0


@pytest.fixture
def bench(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(opening, "ASK_AGAIN_S", 0.5)
    (tmp_path / "token").write_text("token")
    ensure_keys_file(settings.keys_path)
    return Bench(settings.model_copy(update={"control_token_file": tmp_path / "token"}))


@asynccontextmanager
async def deciding(settings: Settings) -> AsyncIterator[None]:
    """A coordinator and a builder."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(run(settings, stop)) for run in (run_coordinator, run_builder)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)


async def call(session: sessions.Session, url: str, said: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=session.key, max_retries=0) as client:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": said}])


async def test_neither_a_coordinator_nor_a_proxy_that_starts_again_loses_a_session_or_a_sample(bench: Bench) -> None:
    engine = ScriptedEngine()
    async with running(engine) as engine_url, SessionTable(bench.settings) as table:
        async with proxied(bench, engine_url) as proxy:
            found = bench.settings.model_copy(update={"control_url": proxy.control_url})
            opening_ = asyncio.create_task(
                asyncio.to_thread(sessions.Session.open, settings=found, task_id="t", samples=2)
            )
            await asyncio.sleep(1.5)  # it is asked for several times before anyone answers
            async with deciding(bench.settings):
                session = await asyncio.wait_for(opening_, DEADLINE_S)
            await call(session, proxy.url, "one")
        async with proxied(bench, engine_url) as proxy, deciding(bench.settings):
            await call(session, proxy.url, "two")
            session.settings, session.reward = found.model_copy(update={"control_url": proxy.control_url}), 0.5
            row = await asyncio.to_thread(session.close)
            with pytest.raises(APIStatusError, match="this session is over") as refused:
                await call(session, proxy.url, "three")
    assert refused.value.status_code == 409
    assert row is not None
    assert (row.session_id, row.status, row.reward, row.calls) == ("t.0", Status.COMPLETED, 0.5, 2)
    sampled = [token for one in engine.record.calls("t.0") for token in one.token_ids]
    assert row.trainable_tokens == len(sampled)
    assert {index: row.phase for index, row in table.sessions["t"].items()} == {0: Phase.ENDED, 1: Phase.UNOPENED}


async def test_an_open_whose_asker_gave_up_leaves_its_sample_to_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody decides while it is asked for; then it is there and withdrawn."""
    monkeypatch.setattr(opening, "ANSWER_S", 1.0)
    async with (
        running(ScriptedEngine()) as engine_url,
        SessionTable(bench.settings) as table,
        proxied(bench, engine_url) as proxy,
    ):
        found = bench.settings.model_copy(update={"control_url": proxy.control_url})
        for task_id in ("t", None):
            with pytest.raises(NotReadyError, match="no coordinator answers"):
                await asyncio.to_thread(sessions.Session.open, settings=found, task_id=task_id)
        async with deciding(bench.settings):
            await eventually(lambda: len(table.tasks) == 2, DEADLINE_S)
            monkeypatch.setattr(opening, "ANSWER_S", DEADLINE_S)
            session = await asyncio.to_thread(sessions.Session.open, settings=found, task_id="t")
            (own,) = table.tasks.keys() - {"t"}
            assert await table.until(lambda: table.is_finished(own), DEADLINE_S)
    assert session.session_id == "t.0"
    assert table.sessions[own][0].status is Status.CANCELLED
