"""A proxy alone for a benchmark: Kafka, the topics that it needs, and `polar proxy` before an engine; no workers, no lake."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from benchmarks.report import say
from benchmarks.system import child, cpu, written
from polar.embedded import Broker
from topics import completions, control, events, fleet, workers
from topics.environment.keys import KeyClaims, Signer, ensure_keys_file
from topics.environment.settings import ENV_FILE, Settings, load, write_env_file
from topics.log import admin, kafka

READY_S = 60.0
KEY_S = 3600
TOPICS = (completions.TOPIC, control.TOPIC, events.TOPIC, fleet.TOPIC, workers.TOPIC)


class Family:
    """A process and its descendants, as one thing that uses CPU and memory."""

    def __init__(self, pid: int) -> None:
        self._first = psutil.Process(pid)

    def _all(self) -> Iterator[psutil.Process]:
        yield self._first
        yield from self._first.children(recursive=True)

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        return sum(map(cpu, self._all()))

    def rss(self) -> int:
        """Resident bytes; pages in common count in each."""
        return sum(process.memory_info().rss for process in self._all())


class Alone:
    """A running proxy and its Kafka."""

    def __init__(self, settings: Settings, url: str, proxy: Family, broker: Family) -> None:
        self.settings = settings
        self.url = url
        self.proxy = proxy
        self.broker = broker
        self._signer = Signer.from_file(settings.keys_path)
        self._sessions = 0

    def key(self) -> tuple[KeyClaims, str]:
        """A new session's claims and key."""
        self._sessions += 1
        now = int(time.time())
        session = f"b{self._sessions}.0"
        # Issued a second ahead, it is newer than the proxy, which then needn't read the session back from the log.
        claims = KeyClaims(
            session, 1, f"claim-{self._sessions}", now + KEY_S, issued_at=now + 1, namespace=self.settings.namespace
        )
        return claims, self._signer.mint(claims)

    async def recorded(self) -> int:
        """Records on `polar.completions`: nobody but the proxy writes there."""
        name = completions.TOPIC.full_name(self.settings.namespace)
        reader = kafka.consumer(self.settings, committed=False)
        await reader.start()
        try:
            count = completions.TOPIC.embedded_partitions
            ends = await reader.end_offsets([kafka.TopicPartition(name, partition) for partition in range(count)])
            return sum(ends.values())
        finally:
            await kafka.stop(reader, 2.0)


@asynccontextmanager
async def alone(engine: str, *options: str) -> AsyncIterator[Alone]:
    """A proxy with these options before the engine at a URL, from when it serves until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="polar-bench-") as folder:
        data = Path(folder)
        broker = Broker(data, announce=say)
        await asyncio.to_thread(broker.start)
        try:
            write_env_file(data / ENV_FILE, {"POLAR_KAFKA": broker.bootstrap, "POLAR_NAMESPACE": "bench"})
            settings = load(data)
            ensure_keys_file(settings.keys_path)
            await admin.apply(settings, TOPICS, embedded=True)
            ready = data / "ready"
            ports = ("--port", "0", "--control-port", "0")
            command = (
                "-m",
                "polar.cli",
                "proxy",
                "--engine",
                engine,
                *ports,
                "--data",
                folder,
                "--ready-file",
                str(ready),
            )
            with child(*command, *options) as process:
                url = json.loads(await written(ready, READY_S))["url"]
                yield Alone(settings, url, Family(process.pid), Family(broker.pid))
        finally:
            await asyncio.to_thread(broker.stop)
