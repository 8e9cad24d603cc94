"""Calls while Kafka stands still: a broker of this module's own, stopped and resumed by signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from polar.embedded import Broker
from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from proxy.app import Proxy
from tests.proxy.conftest import Bench, benched, proxied
from tests.waiting import eventually
from topics.completions import CallRecord, Disowned
from topics.types.completion import Completion
from topics.types.last_call import PATH

pytestmark = pytest.mark.hard

KEEP_ALIVE = b": keep-alive\n\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka"), announce=print) as broker:
        yield broker


@pytest.fixture
async def bench(broker: Broker, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with benched(broker.bootstrap, namespace, tmp_path) as bench:
        yield bench


@pytest.fixture
async def proxy(bench: Bench) -> AsyncIterator[Proxy]:
    async with running(ScriptedEngine()) as engine_url, proxied(bench, engine_url) as proxy:
        yield proxy


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    """The broker does nothing, and keeps its connections."""
    pid = broker.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def call(http: aiohttp.ClientSession, proxy: Proxy, key: str, *, stream: bool) -> aiohttp.client._RequestContextManager:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return http.post(proxy.url + "/v1/chat/completions", headers={"Authorization": f"Bearer {key}"}, json=body)


def counted(proxy: Proxy, name: str, **labels: str) -> float | None:
    """A figure of its metrics."""
    return proxy._metrics.registry.get_sample_value(name, labels)


async def disowned(bench: Bench, session_id: str) -> tuple[list[CallRecord], Disowned]:
    """A session's log up to its first `Disowned`."""
    records = await bench.log(lambda found: any(isinstance(record, Disowned) for record in found), session_id)
    return records, next(record for record in records if isinstance(record, Disowned))


async def test_calls_wait_with_keep_alives_and_are_answered_or_disowned_when_kafka_is_back(
    broker: Broker, bench: Bench, proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    patient_key, impatient_key = bench.key("p.0", "c1"), bench.key("i.0", "c2")
    with stopped(broker):
        patient = await call(http, proxy, patient_key, stream=True)
        impatient = await call(http, proxy, impatient_key, stream=True)
        kept = [await patient.content.readuntil(b"\n\n") for _ in range(2)]
        impatient.close()
    answer = await patient.read()

    assert kept == [KEEP_ALIVE] * 2
    assert answer.endswith(b"data: [DONE]\n\n")
    [recorded] = await bench.calls(1, "p.0")
    assert recorded.call_id == json.loads(answer.split(b"\n\n")[-3].removeprefix(b"data: "))["id"]
    records, given_up = await disowned(bench, "i.0")
    assert given_up.reason == "hung_up"
    assert {record.call_id for record in records if isinstance(record, Completion)} <= {given_up.call_id}


async def test_a_call_that_kafka_never_acknowledges_is_disowned_and_a_retriable_error(
    broker: Broker, bench: Bench, proxy: Proxy, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.capture.ACK_S", 1.0)
    with stopped(broker):
        async with call(http, proxy, bench.key(), stream=False) as response:
            told = await response.json()
            assert (response.status, told["error"]["code"]) == (503, "service_unavailable")
            assert "Retry-After" in response.headers
        authorization = {"Authorization": f"Bearer {bench.key()}"}
        async with http.get(proxy.url + PATH, headers=authorization) as response:
            assert (await response.json())["failure"]["code"] == "unrecorded"
    _, given_up = await disowned(bench, "t.0")
    assert given_up.reason == "unacknowledged"
    async with call(http, proxy, bench.key(), stream=False) as response:
        assert response.status == 200


async def test_an_acknowledgement_after_the_close_is_disowned(
    broker: Broker, bench: Bench, proxy: Proxy, http: aiohttp.ClientSession
) -> None:
    with stopped(broker):
        waiting = await call(http, proxy, bench.key("c.0", "c9"), stream=True)
        assert await waiting.content.readuntil(b"\n\n") == KEEP_ALIVE
        # As the follower of `polar.control` does, which the broker can't reach now.
        proxy._claims.close("c9")
        told = await waiting.read()
    assert json.loads(told.strip().removeprefix(b"data: "))["error"]["code"] == "session_closed"
    _, given_up = await disowned(bench, "c.0")
    assert given_up.reason == "closed"


async def test_stopping_does_not_wait_for_kafka_and_says_what_it_leaves_unsaid(
    broker: Broker, bench: Bench, http: aiohttp.ClientSession
) -> None:
    async with running(ScriptedEngine()) as engine_url, proxied(bench, engine_url) as proxy:
        with stopped(broker):
            impatient = await call(http, proxy, bench.key("s.0", "c4"), stream=True)
            assert await impatient.content.readuntil(b"\n\n") == KEEP_ALIVE
            impatient.close()
            await eventually(lambda: counted(proxy, "polar_proxy_disowned_total", reason="hung_up") == 1)
            async with asyncio.timeout(20):
                await proxy.stop(drain_s=0.1)
    assert counted(proxy, "polar_proxy_unrecorded_total", record="disowned") == 1
