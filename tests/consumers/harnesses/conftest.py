"""A runtime for a harness to work in."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.runtimes.base import Labels
from consumers.runtimes.process import ProcessBackend, ProcessRuntime
from polar.types.task import RuntimeSpec


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    backend = ProcessBackend(tmp_path / "runtimes")
    made = await backend.create(Labels("polar", "task.0", 1, f"i-{secrets.token_hex(8)}"), RuntimeSpec())
    yield made
    await made.remove()
