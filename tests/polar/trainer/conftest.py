"""A trainer's settings on the suite's broker, a builder's hand, and a stand-in for a whole system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.polar.coordinator import Coordinator
from tests.polar.trainer.writing import Writer, group
from topics import tasks
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.producer import LogProducer
from topics.types.task import TaskRequest


@pytest.fixture
def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    return Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)


@pytest.fixture
async def writer(settings: Settings) -> AsyncIterator[Writer]:
    """Of the default topic, which is there."""
    async with Writer(settings) as made:
        yield made


@pytest.fixture
async def system(settings: Settings) -> AsyncIterator[None]:
    """A stand-in for everything between a task and its trajectories: each task is shown and ended, and its group is out, at once."""
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    producer = LogProducer(settings)
    await producer.start()
    async with Writer(settings) as writer:
        running = asyncio.create_task(work(settings, Coordinator(settings, producer), writer), name="system")
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await producer.stop()


async def work(settings: Settings, coordinator: Coordinator, writer: Writer) -> None:
    name = tasks.TOPIC.full_name(settings.namespace)
    client = kafka.consumer(settings, auto_offset_reset="earliest")
    await client.start()
    client.assign([kafka.TopicPartition(name, number) for number in range(tasks.TOPIC.embedded_partitions)])
    seen: set[str] = set()
    try:
        while True:
            for records in (await client.getmany(timeout_ms=100)).values():
                for record in records:
                    sent = TaskRequest.model_validate_json(record.value or b"")
                    if sent.task_id in seen:
                        continue
                    seen.add(sent.task_id)
                    await coordinator.show(sent)
                    await coordinator.end(sent, *range(sent.num_samples))
                    await writer.write(group(sent.task_id, [1.0] * sent.num_samples))
    finally:
        await client.stop()
