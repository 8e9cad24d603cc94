"""A scripted model behind a real proxy, and the way in which a run worker brings it together with a harness."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.harnesses import agent_files
from consumers.harnesses.base import Launch, harness_of
from consumers.runtimes.base import Exec, ExecResult, ModelAccess, Runtime
from consumers.stages.artifacts import newest_file
from polar.scripted.app import running
from polar.scripted.engine import Engine
from polar.scripted.faults import Fault
from polar.scripted.record import Record
from polar.scripted.scripts import Script
from tests.proxy.conftest import Bench, benched, proxied
from topics.environment.blobs import BlobStore
from topics.types.agent import AgentSpec

KEY = "sk-polar-not-a-real-key"
MODEL = "some/model:free"
"""What harnesses call it: slash and colon mean something to some command lines."""
CONTEXT = 2_000_000
"""Tokens of the scripted engine: an instruction may have a mebibyte."""


@dataclass(frozen=True)
class Model:
    """A scripted engine behind a proxy, for one session."""

    access: ModelAccess
    bench: Bench
    record: Path

    def samples(self) -> list[dict[str, Any]]:
        """What the engine sampled, in the order of calls."""
        return [json.loads(line) for line in self.record.read_text().splitlines()]


Models = Callable[..., AbstractAsyncContextManager[Model]]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(kafka: str, namespace: str, tmp_path: Path) -> Models:
    """Makes a model that plays `turns` to whoever says "Mend", and other scripts before that."""

    @asynccontextmanager
    async def made(
        turns: list[dict[str, Any]], *faults: Fault, before: tuple[dict[str, Any], ...] = ()
    ) -> AsyncIterator[Model]:
        mend = {"name": "mend", "match": "Mend", "variants": [{"turns": turns}]}
        scripts = [msgspec.convert(script, Script) for script in (*before, mend)]
        with Record(tmp_path / "sampled.jsonl") as record:
            engine = Engine(scripts, seed=0, max_model_len=CONTEXT, record=record)
            for fault in faults:
                engine.faults.add(fault)
            async with (
                running(engine) as url,
                benched(kafka, namespace, tmp_path) as bench,
                proxied(bench, url) as proxy,
            ):
                where: dict[str, Any] = await bench.open()
                key = bench.key(**where)
                yield Model(ModelAccess(proxy.url, key, MODEL), bench, tmp_path / "sampled.jsonl")

    return made


def access_to(url: str) -> ModelAccess:
    return ModelAccess(url, KEY, MODEL)


async def set_up(
    runtime: Runtime, access: ModelAccess, instruction: str, agent: AgentSpec, blobs: BlobStore | None = None
) -> Launch:
    """As a run worker does it. `blobs`: has the agent's files."""
    harness = harness_of(agent)
    await harness.install()
    file = runtime.home / "instruction.txt"
    await runtime.write_file(file, instruction.encode())
    if blobs is not None:
        await agent_files.place(runtime, harness, agent, blobs)
    return await harness.prepare(runtime, runtime.reached_at(access), file)


async def worked(
    runtime: Runtime, access: ModelAccess, instruction: str, harness: str, **agent: Any
) -> tuple[Launch, ExecResult]:
    """Set a harness up, and let it work."""
    spec = AgentSpec(harness=harness, model_name=access.model_name, **agent)
    launch = await set_up(runtime, access, instruction, spec)
    return launch, await launched(runtime, access, launch, spec)


async def launched(runtime: Runtime, access: ModelAccess, launch: Launch, agent: AgentSpec) -> ExecResult:
    """Let a harness that is set up work."""
    what = Exec(
        launch.command,
        cwd=launch.cwd,
        env=runtime.reached_at(access).env | dict(launch.env),
        stdin=str(launch.stdin) if launch.stdin else None,
        timeout_s=90,
        model=access,
        tools=harness_of(agent).tools,
    )
    return await runtime.exec(what)


async def transcript_of(runtime: Runtime, launch: Launch) -> str:
    """The artifact `agent_transcript`."""
    path = await newest_file(runtime, launch.keep["agent_transcript"])
    assert path is not None
    return (await runtime.read_file(path, 10**7)).decode()
