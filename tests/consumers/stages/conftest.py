"""Runtimes on the worker's host, as other claims left them."""

from __future__ import annotations

import asyncio

import pytest

from consumers.runtimes.base import Exec, ExecResult, Labels
from consumers.runtimes.process import ProcessBackend
from tests.consumers.stages.coordinating import PATIENCE_S, living
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.types.runtime import RuntimeSpec


class Host:
    """The worker's host."""

    def __init__(self, backend: ProcessBackend) -> None:
        self.backend = backend

    async def claims(self) -> set[str]:
        """The claims whose runtimes lie there."""
        return {found.labels.claim_id for found in await self.backend.labelled()}

    async def left_by(self, claim_id: str, session_id: str = "t.0") -> dict[str, str]:
        """Handle of a new runtime whose maker is gone."""
        made = await self.backend.create(Labels("any", session_id, 1, claim_id), RuntimeSpec())
        return dict(made.handle)

    async def program(self, handle: dict[str, str], claim_id: str, mark: str) -> asyncio.Task[ExecResult]:
        """A program that a claim started in a runtime, with `mark` in its environment."""
        runtime = await self.backend.attach(handle, claim_id, RuntimeSpec())
        program = asyncio.create_task(runtime.exec(Exec("sleep 60", env={"MARK": mark})))
        await eventually(lambda: living(mark), PATIENCE_S)
        return program

    async def has_only(self, *claims: str) -> None:
        """Wait until only the runtimes of `claims` are left."""
        async with asyncio.timeout(15):
            while await self.claims() != set(claims):
                await asyncio.sleep(0.01)


@pytest.fixture
def host(settings: Settings) -> Host:
    return Host(ProcessBackend(settings.data / "runtimes" / settings.namespace / "process"))
