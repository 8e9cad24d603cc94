"""Deletes topics, as an operator who mistook the cluster does."""

from __future__ import annotations

from tests.waiting import eventually
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin, kafka

DEADLINE_S = 30.0


async def delete(settings: Settings, topic: Topic) -> None:
    """Returns once the broker doesn't know the topic any more."""
    name = topic.full_name(settings.namespace)
    client = kafka.admin(settings)
    try:
        await client.start()
        await client.delete_topics([name])
    finally:
        await client.close()

    async def is_gone() -> bool:
        return name in await admin.missing(settings, [name])

    await eventually(is_gone, DEADLINE_S, every_s=0.1)
