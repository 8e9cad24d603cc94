"""`polar proxy --processes 2`: kill -9 of one after the other, while harnesses talk on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from consumers.builders.base import BuiltFrom
from consumers.builders.prefix_merging import PrefixMerging
from polar.scripted.app import running
from polar.scripted.drift import Drift
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptTurn, Variant
from tests.proxy.conftest import Bench, benched
from tests.proxy.talks import DIALECTS, Talk
from tests.waiting import eventually
from topics.completions import Build, Disowned
from topics.types.completion import CallOutcome, Completion
from topics.types.session import Status

TURNS = 30
TALKS = 3
"""Of each dialect."""
TRIES = 30
READY_S = 60.0
STOP_S = 30.0
THINKING = tuple(ScriptTurn(f"The answer of turn {turn}.", "What was asked?") for turn in range(TURNS))
ENGINES = {
    "chat": ScriptedEngine,
    "tokens": lambda: ScriptedEngine([Script("s", "", (Variant(THINKING),))], drifts=frozenset(Drift)),
}
"""By the mode in which they are asked."""


class Processes:
    """A `polar proxy` of several processes, started by its command line."""

    def __init__(self, process: asyncio.subprocess.Process, told: dict[str, Any]) -> None:
        self._process = process
        self.url: str = told["url"]
        self.control_urls: list[str] = told["control_urls"]

    @property
    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self._process.pid).children()]

    async def stop(self) -> int:
        self._process.terminate()
        async with asyncio.timeout(STOP_S):
            return await self._process.wait()


@asynccontextmanager
async def processes(bench: Bench, engine_url: str, folder: Path, mode: str = "chat") -> AsyncIterator[Processes]:
    ready = folder / "proxy.ready"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POLAR_")}
    settings = bench.settings
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "polar.cli", "proxy", "--engine", engine_url, "--mode", mode, "--processes", "2",
        "--port", "0", "--control-port", "0", "--ready-file", str(ready),
        env=environment | {
            "POLAR_DATA": str(settings.data), "POLAR_KAFKA": settings.bootstrap, "POLAR_NAMESPACE": settings.namespace
        },
    )  # fmt: skip
    try:
        async with asyncio.timeout(READY_S):
            while not ready.exists():
                assert process.returncode is None, "it ended before it was ready"
                await asyncio.sleep(0.05)
        yield Processes(process, json.loads(ready.read_text()))
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@pytest.fixture
async def bench(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with benched(kafka, namespace, tmp_path) as bench:
        yield bench


async def talk_on(talk: Talk, url: str, turns: int) -> None:
    """As harnesses do: who loses its own connection asks again."""
    for _ in range(turns):
        for _ in range(TRIES):
            try:
                await talk.say(url, f"and turn {len(talk.turns)}")
                break
            except aiohttp.ClientConnectionError:
                talk.turns.pop()
                await asyncio.sleep(0.1)


@pytest.mark.hard
@pytest.mark.parametrize("mode", ["chat", "tokens"])
async def test_a_killed_process_costs_its_sessions_nothing_and_each_is_one_trace(
    bench: Bench, tmp_path: Path, mode: str
) -> None:
    """In mode tokens under every drift: the owner after a killed one goes on from the tokens that it reads on the log."""
    names = {f"{dialect.replace('_', '-')}-{n}.0": dialect for dialect in DIALECTS for n in range(TALKS)}
    async with (
        running(ENGINES[mode]()) as engine_url,
        processes(bench, engine_url, tmp_path, mode) as proxy,
        aiohttp.ClientSession() as http,
    ):
        talks = {name: Talk(http, bench.key(name, name, **await bench.open(name)), names[name]) for name in names}
        talking = asyncio.gather(*(talk_on(talk, proxy.url, TURNS) for talk in talks.values()))
        first, second = proxy.children
        for victim, after in ((first, TURNS // 3), (second, 2 * TURNS // 3)):
            await eventually(lambda: min(len(talk.turns) for talk in talks.values()) > 2 * after, 60)  # noqa: B023 - called in this round alone
            os.kill(victim, signal.SIGKILL)
            await eventually(lambda: victim not in proxy.children)  # noqa: B023 - called in this round alone
        await talking
        await eventually(lambda: len(proxy.children) == 2)
        assert await proxy.stop() == 0
    for name, talk in talks.items():
        assert_is_one_trace(name, talk, *await log_of(bench, name))


async def log_of(bench: Bench, session_id: str) -> tuple[list[Completion], frozenset[str]]:
    """All that the log holds of a session that has ended."""
    await bench.write(build(session_id))
    records = await bench.log(lambda found: any(isinstance(record, Build) for record in found), session_id)
    calls = [record for record in records if isinstance(record, Completion)]
    return calls, frozenset(record.call_id for record in records if isinstance(record, Disowned))


def build(session_id: str) -> Build:
    task_id = session_id.rpartition(".")[0]
    return Build(session_id, task_id, 0, 1, 1, session_id, Status.COMPLETED, "prefix_merging", b"{}", "shell")


def assert_is_one_trace(session_id: str, talk: Talk, calls: list[Completion], disowned: frozenset[str]) -> None:
    trajectory = PrefixMerging().build(BuiltFrom(build(session_id), calls, disowned))
    answered = {call.call_id: call for call in calls if call.outcome is CallOutcome.ANSWERED}
    assert len(talk.heard) == TURNS
    assert set(talk.heard) <= answered.keys() - disowned
    assert [call_id for call_id in talk.heard if answered[call_id].prompt.base is None] == talk.heard[:1]
    assert len(trajectory.traces) == 1, (session_id, trajectory.stats)
    [trace] = trajectory.expanded()
    assert trace.spans[-1].call.call_id == talk.heard[-1]
    assert {span.call.call_id for span in trace.spans} <= answered.keys()
