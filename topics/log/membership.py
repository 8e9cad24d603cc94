"""Membership of a consumer group for as long as a process lives: a lost one is replaced, whatever Kafka's error was.

What a member does with its partitions is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.refusals import refusal

RESTART_S = 0.5
"""Between a lost membership and the next; a broker needs as long to elect a group coordinator."""
STOP_S = 2.0
"""To leave the group; a member that is cut off is removed after its session timeout, `kafka.SESSION_TIMEOUT_MS`."""

log = structlog.get_logger()


async def consume(
    settings: Settings,
    group: str,
    topics: Sequence[str],
    use: Callable[[kafka.Consumer], Awaitable[None]],
    stop: asyncio.Event,
    **options: Any,
) -> None:
    """Run `use` with a started consumer of the group until `stop`, which `use` must notice.

    `topics`: full names; empty if `use` subscribes. `options` are aiokafka's. Raises KafkaRefusedError, and what `use` raises beside
    Kafka's errors.
    """

    async def membership() -> None:
        consumer = kafka.consumer(settings, group=group, **options)
        if topics:
            consumer.subscribe(topics)
        async with kafka.started(consumer, STOP_S):
            await use(consumer)

    await keep(settings, group, membership, stop)


async def keep(settings: Settings, group: str, membership: Callable[[], Awaitable[None]], stop: asyncio.Event) -> None:
    """Run one membership after another until `stop`: a KafkaError or TimeoutError costs no more than that. Raises KafkaRefusedError."""
    while not stop.is_set():
        try:
            await membership()
        except (kafka.KafkaError, TimeoutError) as error:
            if (refused := refusal(settings, error)) is not None:
                raise refused from None
            log.warning("membership lost", action="group.membership_lost", group=group, why=repr(error))
            await asyncio.sleep(RESTART_S)
