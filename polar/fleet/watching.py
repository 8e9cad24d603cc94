"""`polar.workers` followed for as long as someone waits for an echo, with records of our own that keep its clock going.

Log time stands still where nobody writes, as where the only proxy was killed: so who waits writes a `Probe` each second. Where those
aren't taken either Kafka is away, and nobody's lease ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from polar.fleet.acknowledgements import Echoes
from topics import workers
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer, Unacknowledged
from topics.workers import Probe, Sign

SINCE_S = 10.0
"""How far back it is read (protocol 30)."""
PROBE_S = 1.0
STEP_S = 0.25
"""How often what isn't told by a heartbeat is looked at."""


class Watching:
    """Inside `async with` the heartbeats of all live processes are known."""

    def __init__(self, settings: Settings, producer: LogProducer, by: str) -> None:
        self.echoes = Echoes()
        self._producer = producer
        self._by = by
        self._news = asyncio.Event()
        self._follower = Follower(settings, workers.TOPIC, self._on_sign, since=Since.ago(SINCE_S))

    async def __aenter__(self) -> Self:
        await self._follower.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._follower.stop()

    async def caught_up(self, deadline_s: float) -> None:
        """Returns when all that lies on the topic now is known. Raises TimeoutError."""
        await self._follower.caught_up(deadline_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when `holds()`, asked after each heartbeat and four times a second; raises what it raises."""
        probing = asyncio.create_task(self._probe(), name="fleet-probe")
        try:
            while not holds():
                if self._follower.failed.done():
                    self._follower.failed.result()
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(STEP_S):
                        await self._news.wait()
        finally:
            probing.cancel()
            await asyncio.wait([probing])

    async def _probe(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(PROBE_S)
            with suppress(Unacknowledged):
                await self._producer.send(workers.TOPIC, Probe(self._by), key=self._by, deadline_s=PROBE_S)
            await asyncio.sleep(max(0.0, began + PROBE_S - time.monotonic()))

    def _on_sign(self, sign: Sign, record: kafka.Record) -> None:
        self.echoes.hear(sign, record.timestamp)
        self._news.set()
