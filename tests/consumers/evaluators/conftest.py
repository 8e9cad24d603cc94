"""A session to judge."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from consumers.evaluators.base import Case
from consumers.runtimes.base import Labels
from consumers.runtimes.process import ProcessBackend
from topics.types.session import Status
from topics.types.task import RuntimeSpec


@pytest.fixture
async def case(tmp_path: Path) -> AsyncIterator[Case]:
    backend = ProcessBackend(tmp_path / "runtimes")
    made = await backend.create(Labels("polar", "task.0", 1, f"i-{secrets.token_hex(8)}"), RuntimeSpec())
    yield Case(made, "task.0", Status.COMPLETED, 0, None, {"GREETING": "hi"})
    await made.remove()
