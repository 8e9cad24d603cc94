"""A runtime for a harness to work in, a model that plays a script, and the way in which a run worker puts the two together."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.harnesses.base import Launch, ModelAccess, harness_of
from consumers.runtimes.base import Exec, ExecResult, Labels
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from polar.scripted.app import running
from polar.scripted.engine import Engine
from polar.scripted.faults import Fault
from polar.scripted.record import Record
from polar.scripted.scripts import Script
from polar.types.task import AgentSpec, RuntimeSpec

KEY = "sk-polar-not-a-real-key"
MODEL = "some/model:free"
"""Slash and colon mean something to some command lines."""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    backend = ProcessBackend(tmp_path / "runtimes")
    made = await backend.create(Labels("polar", "task.0", 1, f"i-{secrets.token_hex(8)}"), RuntimeSpec())
    yield made
    await made.remove()


@asynccontextmanager
async def model(folder: Path, turns: list[dict[str, Any]], *faults: Fault) -> AsyncIterator[tuple[ModelAccess, Path]]:
    """An engine that plays `turns` to whoever says "Mend", and its record of what it sampled."""
    script = msgspec.convert({"name": "mend", "match": "Mend", "variants": [{"turns": turns}]}, Script)
    with Record(folder / "sampled.jsonl") as record:
        engine = Engine([script], seed=0, model=MODEL, max_model_len=2_000_000, record=record)
        for fault in faults:
            engine.faults.add(fault)
        async with running(engine) as url:
            yield access_to(url), folder / "sampled.jsonl"


def access_to(url: str) -> ModelAccess:
    return ModelAccess(url, KEY, MODEL)


async def set_up(runtime: ProcessRuntime, access: ModelAccess, instruction: str, agent: AgentSpec) -> Launch:
    """As a run worker does it."""
    harness = harness_of(agent)
    await harness.install()
    file = runtime.home / "instruction.txt"
    await runtime.write_file(file, instruction.encode())
    return await harness.prepare(runtime, access, file)


async def worked(
    runtime: ProcessRuntime, access: ModelAccess, instruction: str, harness: str, **agent: Any
) -> tuple[Launch, ExecResult]:
    """Set a harness up, and let it work."""
    spec = AgentSpec(harness=harness, model_name=access.model_name, **agent)
    launch = await set_up(runtime, access, instruction, spec)
    what = Exec(
        launch.command,
        cwd=launch.cwd,
        env=access.env | dict(launch.env),
        stdin=str(launch.stdin) if launch.stdin else None,
        timeout_s=60,
    )
    return launch, await runtime.exec(what)


def samples(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()]
