"""A namespace with all topics, and the coordinator of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.polar.coordinator import Coordinator
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.producer import LogProducer


@pytest.fixture
async def settings(kafka: str, namespace: str) -> Settings:
    found = Settings(kafka=kafka, namespace=namespace, replication=1, min_insync=1)
    await admin.apply(found, catalogue.FIXED, embedded=True)
    return found


@pytest.fixture
async def coordinator(settings: Settings) -> AsyncIterator[Coordinator]:
    producer = LogProducer(settings)
    await producer.start()
    yield Coordinator(settings, producer)
    await producer.stop()
