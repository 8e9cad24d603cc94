"""A fleet of one worker and a coordinator that the test plays; and a runtime `process` without either."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from consumers.runtimes.base import Labels, Runtime, RuntimeBackend
from consumers.runtimes.process import ProcessBackend
from tests.consumers.stages.coordinating import Coordinator, coordinating, settings_for
from tests.serving import serving
from topics.environment.settings import Settings
from topics.types.runtime import RuntimeSpec


@pytest.fixture(scope="session")
def proxy_url() -> Iterator[str]:
    """Stands in for a proxy that all last calls went well at. A harness that calls the model gets nothing of use."""
    with serving(lambda _: (200, {})) as (url, _):
        yield url


@pytest.fixture
def settings(kafka: str, namespace: str, tmp_path: Path, proxy_url: str) -> Settings:
    return settings_for(kafka, namespace, tmp_path, proxy_url)


@pytest.fixture
async def coordinator(settings: Settings) -> AsyncIterator[Coordinator]:
    async with coordinating(settings) as played:
        yield played


@pytest.fixture
def backend(tmp_path: Path) -> ProcessBackend:
    return ProcessBackend(tmp_path / "runtimes")


@pytest.fixture
def claim() -> str:
    """Unlike any other test's, also of another run on this machine: processes are killed by it."""
    return f"claim-{uuid.uuid4().hex}"


@pytest.fixture
async def runtime(backend: RuntimeBackend, claim: str) -> AsyncIterator[Runtime]:
    made = await backend.create(Labels("polar", "task.0", 1, claim), RuntimeSpec())
    yield made
    await made.remove()
