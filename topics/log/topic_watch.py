"""Watches the topics of a process: says within seconds which one is missing, what to do, and when it is there again.

Consumers and producers themselves only wait for a topic that somebody has deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from topics import sessions
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.types.errors import NotReadyError

LOOK_S = 3.0
"""Between two looks."""


@asynccontextmanager
async def watching_topics(
    settings: Settings, topics: Iterable[Topic], report: Callable[[str], None]
) -> AsyncIterator[None]:
    """Watch within the block. The process's login must have a right on each topic. `report` gets a sentence for each change."""
    watch = asyncio.create_task(_watch(settings, topics, report), name="watch-topics")
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _watch(settings: Settings, topics: Iterable[Topic], report: Callable[[str], None]) -> None:
    names = {topic.full_name(settings.namespace): topic for topic in topics}
    known: set[str] = set()
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            missing = await admin.missing(settings, names)
        except NotReadyError:
            continue  # what a process does without brokers, it says itself
        for name in sorted(missing - known):
            then = ", and then `polar topics rebuild-table` its rows" if names[name].name == sessions.TOPIC.name else ""
            report(f"Kafka has no topic {name}; `polar topics apply` makes it{then}")
        for name in sorted(known - missing):
            report(f"Kafka has the topic {name} again")
        known = missing
