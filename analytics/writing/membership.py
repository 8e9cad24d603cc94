"""Which partitions of the log this process writes to the lake: the group `<namespace>.analytics` shares them out.

Membership alone: nothing is read here, and a rebalance is only noted; whoever writes looks at `assigned` when it suits. Followed are
the topics of `analytics.lake.written.TABLES` and every trajectories topic, named ones as soon as they are made. The offsets committed are
for lag metrics only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import structlog

from analytics.lake.written import TABLES
from topics import trajectories
from topics.environment.settings import Settings
from topics.log import kafka, membership

GROUP = "analytics"
POLL_MS = 200
DISCOVER_S = 2.0
COMMIT_S = 2.0
FETCH_BYTES = 4096
"""A member's own fetches are thrown away."""

log = structlog.get_logger()


class Membership:
    """Changes `assigned` from `run`; both belong to one loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._member: kafka.Consumer | None = None
        self.assigned: frozenset[kafka.TopicPartition] = frozenset()
        """By the topics' full names. Another may have taken one in the meantime."""

    async def run(self, stop: asyncio.Event) -> None:
        """Be a member until `stop`; a broker that is away is waited for."""
        try:
            await membership.consume(
                self._settings, GROUP, [], partial(self._follow_all, stop), stop, max_partition_fetch_bytes=FETCH_BYTES
            )
        finally:
            self.assigned = frozenset()

    async def commit(self, offsets: Mapping[kafka.TopicPartition, int]) -> None:
        """Tell the group how far the lake is; nothing relies on it, so failing costs a lag that is too high until the next."""
        member = self._member
        held = {source: offset for source, offset in offsets.items() if source in self.assigned}
        if member is None or not held:
            return
        try:
            async with asyncio.timeout(COMMIT_S):
                await member.commit(held)
        except (kafka.KafkaError, TimeoutError) as error:
            log.info("lag not told", action="analytics.lag_not_told", why=repr(error))

    async def _follow_all(self, stop: asyncio.Event, member: kafka.Consumer) -> None:
        self._member = member
        try:
            followed: list[str] = []
            looked_at = -DISCOVER_S
            now = asyncio.get_running_loop().time
            while not stop.is_set():
                if now() - looked_at >= DISCOVER_S:
                    found, looked_at = self._followed(await member.topics()), now()
                    if found != followed:
                        log.info("topics followed", action="analytics.follows", topics=found)
                        if found:
                            member.subscribe(found)
                        followed = found
                if not followed:
                    await asyncio.sleep(DISCOVER_S)
                    continue
                member.pause(*member.assignment())
                await member.getmany(timeout_ms=POLL_MS)
                self.assigned = frozenset(member.assignment())
        finally:
            self._member = None

    def _followed(self, there: set[str]) -> list[str]:
        """Of all topics on the broker those that the lake holds."""
        namespace = self._settings.namespace
        fixed = {f"{namespace}.{topic}" for topic in (*TABLES, trajectories.TOPIC.name)}
        named = f"{trajectories.TOPIC.full_name(namespace)}."
        return sorted(name for name in there if name in fixed or name.startswith(named))
