"""A system's topics on the embedded broker, who writes to them, its builder, and what retention does."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import RecordsToDelete

from consumers.building.builder import run_builder
from tests.waiting import eventually
from topics import completions, trajectories
from topics.contract import catalogue
from topics.contract.codec import Codec
from topics.contract.topic import Topic
from topics.environment.keys import ensure_keys_file
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import read_back
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.types.trajectory import Trajectory

STOP_S = 60.0


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Collect what a failed producer leaves: its futures log their errors then, and CPython 3.11's parser fails if that interrupts it."""
    yield
    gc.collect()


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    """Of a system whose topics are there."""
    made = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    ensure_keys_file(made.keys_path)
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


async def expire(settings: Settings, before: int, topic: Topic = completions.TOPIC) -> None:
    """As retention does it: the records of task `t` before an offset leave the log."""
    client: Any = kafka.admin(settings)
    await client.start()
    try:
        partition = partition_of_task("t", completions.TOPIC.embedded_partitions)
        source = kafka.TopicPartition(topic.full_name(settings.namespace), partition)
        await client.delete_records({source: RecordsToDelete(before)})
    finally:
        await client.close()


async def records_of(settings: Settings, topic: Topic, of: type[Any] = object) -> list[Any]:
    """All committed records of a type on a topic, partition by partition."""
    codec: Codec[Any] = Codec(*topic.records)
    found = []
    for partition in range(topic.embedded_partitions):
        async for record in read_back(settings, topic.full_name(settings.namespace), partition):
            decoded = codec.decode(record.value or b"")
            if isinstance(decoded, of):
                found.append(decoded)
    return found


async def emitted(settings: Settings) -> Trajectory:
    """The only trajectory of the default output, once it is there."""
    found = await eventually(lambda: records_of(settings, trajectories.TOPIC, Trajectory), STOP_S, every_s=0.1)
    (trajectory,) = found
    assert isinstance(trajectory, Trajectory)
    return trajectory
