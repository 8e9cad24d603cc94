"""A proxy in the test's own loop, against a real Kafka and the scripted engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from proxy.addresses import Binding
from proxy.app import Proxy
from proxy.dialects.base import dialects
from proxy.engines.pool import Engines
from topics import completions, control, events, fleet, workers
from topics.completions import CallRecord
from topics.control import CloseKey
from topics.environment.keys import KeyClaims, Signer, ensure_keys_file
from topics.environment.settings import EngineSettings, Settings
from topics.fleet import FleetState, PolicyVersion
from topics.log import admin, kafka
from topics.log.partition import partition_of_session
from topics.log.producer import LogProducer
from topics.types.completion import Completion
from topics.types.session import task_id_of

ENGINE_DEADLINE_S = 4.0
LOG_DEADLINE_S = 15.0
TOPICS = (completions.TOPIC, control.TOPIC, events.TOPIC, fleet.TOPIC, workers.TOPIC)
"""What a proxy reads and writes."""


class Bench:
    """A namespace of topics, a keys file and what tests do with them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.signer = Signer.from_file(settings.keys_path)
        self._producer = LogProducer(settings)

    async def start(self) -> None:
        await admin.apply(self.settings, TOPICS, embedded=True)
        await self._producer.start()

    async def stop(self) -> None:
        await self._producer.stop()

    def key(self, session_id: str = "t.0", claim_id: str = "c1", **fields: Any) -> str:
        """A key as the run worker mints it, minted now and valid for an hour unless told otherwise."""
        now = int(time.time())
        told: dict[str, Any] = {
            "attempt": 1,
            "issued_at": now + 1,
            "expires_at": now + 3600,
            "namespace": self.settings.namespace,
        } | fields
        return self.signer.mint(KeyClaims(session_id=session_id, claim_id=claim_id, **told))

    async def open(self, session_id: str = "t.0", claim_id: str = "c1") -> dict[str, int]:
        """Writes a session's `Open`; where it lies, for its key."""
        ack = await self.write(completions.Open(session_id, 1, claim_id))
        return {"log_partition": ack[0], "log_offset": ack[1]}

    async def write(self, record: completions.Open | completions.Build) -> tuple[int, int]:
        ack = await self._producer.send(
            completions.TOPIC, record, key=record.session_id, task_id=task_id_of(record.session_id)
        )
        return ack.partition, ack.offset

    async def close_key(self, session_id: str = "t.0", claim_id: str = "c1") -> None:
        await self._producer.send(control.TOPIC, CloseKey(session_id, claim_id), key=session_id)

    async def fleet(self, record: FleetState | PolicyVersion) -> None:
        await self._producer.send(fleet.TOPIC, record, key=fleet.key_of(record))

    async def log(self, until: Callable[[list[CallRecord]], bool], session_id: str = "t.0") -> list[CallRecord]:
        """A session's records, read from the beginning until they satisfy `until`; fails after 15 s."""
        partition = kafka.TopicPartition(
            completions.TOPIC.full_name(self.settings.namespace),
            partition_of_session(session_id, completions.TOPIC.embedded_partitions),
        )
        reader = kafka.consumer(self.settings, committed=False)
        await reader.start()
        found: list[CallRecord] = []
        try:
            reader.assign([partition])
            reader.seek(partition, 0)
            async with asyncio.timeout(LOG_DEADLINE_S):
                while not until(found):
                    for records in (await reader.getmany(timeout_ms=100)).values():
                        found += [decoded(record) for record in records if record.key == session_id.encode()]
        except TimeoutError:
            raise AssertionError(f"not on the log within {LOG_DEADLINE_S:.0f} s; there is {found}") from None
        finally:
            await kafka.stop(reader, 2.0)
        return found

    async def calls(self, count: int, session_id: str = "t.0") -> list[Completion]:
        """The session's first `count` calls."""
        records = await self.log(lambda found: sum(isinstance(r, Completion) for r in found) >= count, session_id)
        return [record for record in records if isinstance(record, Completion)]


def decoded(record: kafka.Record) -> CallRecord:
    assert record.value is not None
    decoded = completions.CODEC.decode(record.value)
    assert isinstance(decoded, completions.RECORDS)
    return decoded


@asynccontextmanager
async def benched(kafka_address: str, namespace: str, folder: Path) -> AsyncIterator[Bench]:
    settings = Settings(kafka=kafka_address, namespace=namespace, data=folder)
    ensure_keys_file(settings.keys_path)
    bench = Bench(settings)
    await bench.start()
    try:
        yield bench
    finally:
        await bench.stop()


def engines_at(*urls: str) -> Engines:
    """One engine, `default`: the scripted one's model at these URLs."""
    return Engines.of({"default": EngineSettings(urls=urls, model="polar-scripted")}, deadline_s=ENGINE_DEADLINE_S)


@asynccontextmanager
async def proxied(bench: Bench, engine_url: str) -> AsyncIterator[Proxy]:
    engines = engines_at(engine_url)
    local = Binding("127.0.0.1", 0)
    proxy = Proxy(bench.settings, engines, dialects(), local, local)
    try:
        await proxy.start()
        yield proxy
    finally:
        await proxy.stop(drain_s=0.0)


@pytest.fixture
async def bench(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with benched(kafka, namespace, tmp_path) as bench:
        yield bench


@pytest.fixture
def scripted() -> ScriptedEngine:
    """The engine's books: what it sampled, what it is told to do wrong."""
    return ScriptedEngine()


@pytest.fixture
async def engine_url(scripted: ScriptedEngine) -> AsyncIterator[str]:
    async with running(scripted) as url:
        yield url


@pytest.fixture
async def proxy(bench: Bench, engine_url: str) -> AsyncIterator[Proxy]:
    async with proxied(bench, engine_url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy, bench: Bench) -> AsyncIterator[AsyncOpenAI]:
    """The official client with session t.0's key; it doesn't try again by itself."""
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=bench.key(), max_retries=0) as client:
        yield client


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
