"""Makes topics what a broker has after its folder was restored from an older copy."""

from __future__ import annotations

from typing import Any

from tests.lost_topics import delete
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import read_back

Copy = list[tuple[Topic, list[kafka.Record]]]
"""Topics with all their records."""


async def copy(settings: Settings, *topics: Topic) -> Copy:
    return [(topic, await _records(settings, topic)) for topic in topics]


async def restore(settings: Settings, copied: Copy) -> None:
    """Give the topics the copy's records alone, with the copy's offsets and timestamps."""
    producer: Any = kafka.producer(settings)
    await producer.start()
    try:
        for topic, records in copied:
            await delete(settings, topic)
            await admin.apply(settings, [topic], embedded=True)
            for record in records:
                at: dict[str, Any] = {"partition": record.partition, "timestamp_ms": record.timestamp}
                await producer.send(record.topic, record.value, key=record.key, **at)
            await producer.flush()
            ours = [(each.partition, each.offset, each.timestamp) for each in await _records(settings, topic)]
            assert ours == [(each.partition, each.offset, each.timestamp) for each in records], (
                "no transactions, no gaps"
            )
    finally:
        await kafka.stop(producer, 10)


async def _records(settings: Settings, topic: Topic) -> list[kafka.Record]:
    name = topic.full_name(settings.namespace)
    return [
        record
        for partition in range(topic.embedded_partitions)
        async for record in read_back(settings, name, partition)
    ]
