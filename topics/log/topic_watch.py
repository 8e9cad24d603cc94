"""Watches the topics of a process: says within seconds which one is missing, what to do, and when it is there again.

Consumers and producers themselves only wait for a topic that somebody has deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import structlog

from topics import sessions, stages
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.refusals import KafkaRefusedError

LOOK_S = 3.0
"""Between two looks; each is one request on a connection that stays."""
ANSWER_S = 10.0

log = structlog.get_logger()


@asynccontextmanager
async def watching_topics(
    settings: Settings, topics: Iterable[Topic], report: Callable[[str], None]
) -> AsyncIterator[None]:
    """Watch within the block. The process's login must have a right on each topic. `report` gets a sentence for each change."""
    watch = asyncio.create_task(_Watch(settings, topics, report).run(), name="watch-topics")
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait([watch])


class _Watch:
    def __init__(self, settings: Settings, topics: Iterable[Topic], report: Callable[[str], None]) -> None:
        self._settings = settings
        self._topics = {topic.full_name(settings.namespace): topic for topic in topics}
        self._report = report
        self._missing: set[str] = set()

    async def run(self) -> None:
        """Until cancelled, or until Kafka refuses to describe a topic."""
        while True:
            client = kafka.admin(self._settings)
            try:
                await self._look(client)
            except KafkaRefusedError as refused:
                log.warning("topics aren't watched", action="topics.unwatched", why=str(refused))
                return
            except (kafka.KafkaError, TimeoutError):
                pass  # what a process does without brokers, it says itself
            finally:
                await client.close()
            await asyncio.sleep(LOOK_S)

    async def _look(self, client: kafka.Admin) -> None:
        """Until an error of Kafka."""
        async with asyncio.timeout(ANSWER_S):
            await client.start()
        while True:
            await asyncio.sleep(LOOK_S)
            async with asyncio.timeout(ANSWER_S):
                self._compare(await admin.missing_of(self._settings, client, self._topics))

    def _compare(self, missing: set[str]) -> None:
        for name in sorted(missing - self._missing):
            self._report(f"Kafka has no topic {name}; {_advice(self._topics[name])}")
        for name in sorted(self._missing - missing):
            self._report(f"Kafka has the topic {name} again")
        self._missing = missing


def _advice(topic: Topic) -> str:
    if topic.name.startswith(stages.PREFIX):
        return f"`polar topics apply --pool {topic.name.rpartition('.')[2]}` makes it"
    then = ", and then `polar topics rebuild-table` its rows" if topic.name == sessions.TOPIC.name else ""
    return f"`polar topics apply` makes it{then}"
