"""Deletes topics, as an operator who mistook the cluster does."""

from __future__ import annotations

from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import kafka


async def delete(settings: Settings, *topics: Topic) -> None:
    client = kafka.admin(settings)
    try:
        await client.start()
        await client.delete_topics([topic.full_name(settings.namespace) for topic in topics])
    finally:
        await client.close()
