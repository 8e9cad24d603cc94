"""Settings that point at the suite's broker, and readers of what lies on a topic."""

from collections.abc import Awaitable, Callable

import pytest

from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log import kafka as clients

Read = Callable[[str], Awaitable[list[clients.Record]]]


@pytest.fixture
def settings(kafka: str, namespace: str) -> Settings:
    return Settings(kafka=kafka, namespace=namespace)


Apply = Callable[..., Awaitable[None]]


@pytest.fixture
def apply(settings: Settings) -> Apply:
    """Makes topics as an embedded system has them."""

    async def made(*topics: Topic) -> None:
        await admin.apply(settings, topics, embedded=True)

    return made


async def whole(settings: Settings, name: str) -> list[clients.Record]:
    """All records of a topic, by its full name, partition by partition."""
    reader = clients.consumer(settings, committed=False)
    await reader.start()
    try:
        count = await admin.partition_count(settings, name)
        partitions = [clients.TopicPartition(name, number) for number in range(count)]
        reader.assign(partitions)
        ends = await reader.end_offsets(partitions)
        found: list[clients.Record] = []
        while any([await reader.position(partition) < end for partition, end in ends.items()]):
            for records in (await reader.getmany(timeout_ms=100)).values():
                found += records
    finally:
        await clients.stop(reader, 5)
    return sorted(found, key=lambda record: (record.partition, record.offset))


@pytest.fixture
def read(settings: Settings) -> Read:
    async def found(name: str) -> list[clients.Record]:
        return await whole(settings, name)

    return found
