"""`HeartbeatWatch` follows `polar.workers` while someone waits for an acknowledgement, and keeps log time moving.

Log time stands still when nobody writes, for example after the only proxy was killed. So the waiting process writes a `Probe` each second.
If Kafka doesn't acknowledge these probes, Kafka is away and no lease expires.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from polar.fleet.acknowledgements import Acknowledgements
from topics import workers
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.follow import START_S, Follower, Since
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done
from topics.workers import Probe, Sign

SINCE_S = 10.0
"""How far back reading begins (protocol 30)."""
PROBE_S = 1.0
"""A sixth of a lease."""
STEP_S = 0.25
"""How often a condition is checked that no heartbeat changes."""


class HeartbeatWatch:
    """Inside `async with` the heartbeats of all live processes are known."""

    def __init__(self, settings: Settings, producer: LogProducer, by: str) -> None:
        self.processes = Acknowledgements()
        self._producer = producer
        self._by = by
        self._settings = settings
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Raises NotReadyError."""
        ahead_s = await self._ahead_s()
        self._follower = Follower(self._settings, workers.TOPIC, self._on_record, since=Since.ago(SINCE_S + ahead_s))
        await self._follower.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._follower.stop()

    async def caught_up(self, deadline_s: float) -> None:
        """Wait until all records now on the topic are read. Raises TimeoutError."""
        await self._follower.caught_up(deadline_s)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds()`, which is called after each heartbeat and four times a second. Raises what `holds` raises."""
        probing = asyncio.create_task(self._probe(), name="fleet-probe")
        try:
            while not holds():
                self._changed.clear()
                await first_done(self._changed, self._follower.failed, timeout_s=STEP_S)
        finally:
            probing.cancel()
            await asyncio.wait([probing])

    async def _ahead_s(self) -> float:
        """By how much this host's clock is ahead of the broker's, which stamps heartbeats. By our clock alone, all of them may seem old."""
        try:
            probe = await self._producer.send(workers.TOPIC, Probe(self._by), key=self._by, deadline_s=START_S)
        except UnacknowledgedError as error:
            raise NotReadyError(f"Kafka doesn't acknowledge this client's records: {error}") from None
        return time.time() - probe.timestamp / 1000

    async def _probe(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(PROBE_S)
            with suppress(UnacknowledgedError):
                await self._producer.send(workers.TOPIC, Probe(self._by), key=self._by, deadline_s=PROBE_S)
            await asyncio.sleep(max(0.0, began + PROBE_S - time.monotonic()))

    def _on_record(self, sign: Sign, record: kafka.Record) -> None:
        self.processes.add(sign, record.timestamp)
        self._changed.set()
