"""A worker that has been without Kafka for too long, with a broker of this module's own, stopped by signal."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from consumers.stages import worker
from polar.embedded import Broker
from tests.consumers.stages.coordinating import (
    PATIENCE_S,
    Coordinator,
    coordinating,
    living,
    settings_for,
    shell,
    ticket,
    working,
)
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.types.session import Stage

pytestmark = pytest.mark.hard

SHORT_S = 3.0
"""In the place of the 15 min."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), announce=print) as broker:
        yield broker


@pytest.fixture
def settings(broker: Broker, namespace: str, tmp_path: Path, proxy_url: str) -> Settings:
    return settings_for(broker.bootstrap, namespace, tmp_path, proxy_url)


@pytest.fixture
async def coordinator(settings: Settings) -> AsyncIterator[Coordinator]:
    async with coordinating(settings) as played:
        yield played


async def test_a_worker_stops_its_sessions_after_too_long_without_kafka(
    broker: Broker, settings: Settings, coordinator: Coordinator, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WITHOUT_KAFKA_S", SHORT_S)
    async with working(settings, [Stage.INIT, Stage.RUN]):
        task = shell("left", f"MARK={namespace} sleep 600")
        runtime = await coordinator.initialised(task)
        await coordinator.granted(ticket(task, Stage.RUN, budget_s=600.0, runtime=runtime))
        await eventually(lambda: living(namespace), PATIENCE_S)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            await eventually(lambda: not living(namespace), PATIENCE_S)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
