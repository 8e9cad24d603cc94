"""A system's topics on the embedded broker, who writes to them, its builder, and what retention does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import RecordsToDelete

from consumers.building.builder import run_builder
from topics import completions
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer

STOP_S = 60.0


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    """Of a system whose topics are there."""
    made = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(made, catalogue.FIXED, embedded=True)
    return made


@pytest.fixture
async def log(settings: Settings) -> AsyncIterator[LogProducer]:
    """A producer that is started."""
    producer = LogProducer(settings)
    await producer.start()
    yield producer
    await producer.stop()


@asynccontextmanager
async def building(settings: Settings) -> AsyncIterator[None]:
    """The builder, as long as the context lasts."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_builder(settings, stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(STOP_S):
            await running


async def expire(settings: Settings, before: int) -> None:
    """As retention does it: the calls of task `t` before an offset leave the log."""
    client: Any = kafka.admin(settings)
    await client.start()
    try:
        partition = partition_of_task("t", completions.TOPIC.embedded_partitions)
        source = kafka.TopicPartition(completions.TOPIC.full_name(settings.namespace), partition)
        await client.delete_records({source: RecordsToDelete(before)})
    finally:
        await client.close()
