"""Settings that point at the suite's broker, and readers of what lies on a topic."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log import kafka as clients
from topics.log.owner import read_back
from topics.log.producer import LogProducer

Apply = Callable[..., Awaitable[None]]
Read = Callable[[str], Awaitable[list[clients.Record]]]


@pytest.fixture
def settings(kafka: str, namespace: str) -> Settings:
    return Settings(kafka=kafka, namespace=namespace)


@pytest.fixture
async def producer(settings: Settings) -> AsyncIterator[LogProducer]:
    made = LogProducer(settings)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def apply(settings: Settings) -> Apply:
    """Makes topics as an embedded system has them."""

    async def made(*topics: Topic) -> None:
        await admin.apply(settings, topics, embedded=True)

    return made


@pytest.fixture
def read(settings: Settings) -> Read:
    """Reads all committed records of a topic, by its full name, partition by partition."""

    async def found(name: str) -> list[clients.Record]:
        partitions = range(await admin.partition_count(settings, name))
        return [record for partition in partitions async for record in read_back(settings, name, partition)]

    return found
