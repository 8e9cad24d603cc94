"""A server that is started again serves its first weights, whatever was published: with its proxy, and without. Kafka is real."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from structlog.testing import capture_logs

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from proxy.addresses import Binding
from proxy.app import Proxy
from proxy.dialects.base import dialects
from proxy.engines import health
from proxy.engines.pool import Engines
from proxy.engines.replicas import Replicas
from proxy.engines.vllm_chat import VllmChat
from tests.proxy.conftest import Bench
from tests.waiting import eventually
from topics import fleet
from topics.environment.settings import EngineSettings
from topics.fleet import CODEC, EngineProcess, PolicyVersion
from topics.log.owner import read_back
from topics.types.completion import Completion


@pytest.fixture
def port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        found: int = door.getsockname()[1]
        return found


def proxy_of(bench: Bench, port: int, mode: str = "chat") -> tuple[Proxy, Engines]:
    """A proxy before a server that is yet to be started, and its engines."""
    url = f"http://127.0.0.1:{port}"
    engines = Engines.of({"default": EngineSettings(urls=(url,), model="polar-scripted", mode=mode)}, deadline_s=4.0)
    local = Binding("127.0.0.1", 0)
    return Proxy(bench.settings, engines, dialects(), local, local), engines


@asynccontextmanager
async def system(bench: Bench, port: int, mode: str) -> AsyncIterator[Proxy]:
    """A server, started now, and a proxy, started now."""
    proxy, _ = proxy_of(bench, port, mode)
    async with running(ScriptedEngine(), port=port):
        try:
            await proxy.start()
            yield proxy
        finally:
            await proxy.stop(drain_s=0.0)


async def processes(bench: Bench) -> list[EngineProcess]:
    """All that were ever written."""
    name = fleet.TOPIC.full_name(bench.settings.namespace)
    records = [CODEC.decode(record.value or b"") async for record in read_back(bench.settings, name, 0)]
    return [record for record in records if isinstance(record, EngineProcess)]


async def written(bench: Bench, count: int) -> bool:
    return len(await processes(bench)) >= count


class Asking:
    """Calls of one session, one after another."""

    def __init__(self, bench: Bench, http: aiohttp.ClientSession) -> None:
        self._bench = bench
        self._http = http
        self._count = 0

    async def call(self, proxy: Proxy) -> tuple[int | None, int | None]:
        """Version and publication of a call, as the log has them."""
        self._count += 1
        headers = {"Authorization": f"Bearer {self._bench.key()}"}
        body = {"model": "m", "messages": [{"role": "user", "content": f"hi {self._count}"}]}
        async with self._http.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
        recorded: Completion = (await self._bench.calls(self._count))[-1]
        return recorded.policy_version, recorded.publication

    async def called(self, proxy: Proxy, version: int | None) -> bool:
        return (await self.call(proxy))[0] == version


async def publish(bench: Bench, version: int) -> None:
    await bench.fleet(PolicyVersion(version))


async def test_a_server_that_names_its_weights_and_its_proxy_started_again_give_no_version_until_the_next(
    bench: Bench, http: aiohttp.ClientSession, port: int
) -> None:
    asking = Asking(bench, http)
    async with system(bench, port, "tokens") as proxy:
        async with http.post(f"http://127.0.0.1:{port}/update_weight_version", json={"new_version": "5"}) as response:
            assert response.status == 200
        await publish(bench, 5)
        await eventually(lambda: asking.called(proxy, 5))
        version, publication = await asking.call(proxy)
        assert (version, publication is not None) == (5, True)
        await eventually(lambda: written(bench, 2))
        [found, named] = await processes(bench)
        assert (found.names_weights, named.names_weights) == (False, True)
        assert found.started_ms == named.started_ms
    async with system(bench, port, "tokens") as proxy:
        assert await asking.call(proxy) == (None, None), "its weights are the first ones, named `default`"
        await publish(bench, 6)
        await eventually(lambda: asking.called(proxy, 6))


async def test_a_server_that_names_nothing_is_found_to_be_another_process_by_the_proxy_that_outlives_it(
    bench: Bench, http: aiohttp.ClientSession, port: int
) -> None:
    asking = Asking(bench, http)
    proxy, engines = proxy_of(bench, port)
    try:
        async with running(ScriptedEngine(), port=port):
            await proxy.start()
            await publish(bench, 5)
            await eventually(lambda: asking.called(proxy, 5))
        await eventually(lambda: engines.default.healthy == 0)
        async with running(ScriptedEngine(), port=port):
            assert await asking.call(proxy) == (None, None)
            async with http.get(proxy.control_url + "/metrics") as response:
                assert 'polar_proxy_policy_doubts_total{reason="restarted"} 1.0' in await response.text()
            await publish(bench, 5)
            await eventually(lambda: asking.called(proxy, 5))
    finally:
        await proxy.stop(drain_s=0.0)


async def test_a_server_that_is_replaced_between_two_calls_proves_no_version_though_no_call_and_no_check_fails(
    bench: Bench, http: aiohttp.ClientSession, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_S", 60.0)
    asking = Asking(bench, http)
    proxy, _ = proxy_of(bench, port)
    try:
        async with running(ScriptedEngine(), port=port):
            await proxy.start()
            await publish(bench, 5)
            await eventually(lambda: asking.called(proxy, 5))
            assert (await asking.call(proxy))[0] == 5
        async with running(ScriptedEngine(), port=port):
            assert await asking.call(proxy) == (None, None)
    finally:
        await proxy.stop(drain_s=0.0)


class Restless(VllmChat):
    """Its server is another process whenever somebody looks."""

    looks = 0

    @property
    def closings(self) -> int:
        self.looks += 1
        return self.looks

    async def started_ms(self) -> int | None:
        return self.looks

    async def is_healthy(self) -> bool:
        return True


async def test_no_process_is_recorded_after_the_producer_has_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "CHECK_S", 0.001)
    local = Binding("127.0.0.1", 0)
    client = Restless("http://127.0.0.1:9", "polar-scripted")
    engine = Replicas("default", {"http://127.0.0.1:9": client}, model="polar-scripted", concurrency=1)
    proxy = Proxy(bench.settings, Engines([engine]), dialects(), local, local)
    with capture_logs() as logs:
        try:
            await proxy.start()
            await eventually(lambda: written(bench, 1))
        finally:
            await proxy.stop(drain_s=0.0)
    assert [line for line in logs if line["action"] == "process_unrecorded"] == []


async def test_a_proxy_that_is_started_again_alone_knows_what_its_predecessor_knew(
    bench: Bench, http: aiohttp.ClientSession, port: int
) -> None:
    """The host's clock is an hour ahead: only the order of records proves that the server ran when its weights were published."""
    asking = Asking(bench, http)
    local = Binding("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    engine = ScriptedEngine()
    engine.started += 3600.0  # type: ignore[misc] # another host's clock
    async with running(engine, port=port):
        for _ in range(2):
            engines = Engines.of({"default": EngineSettings(urls=(url,), model="polar-scripted")}, deadline_s=4.0)
            proxy = Proxy(bench.settings, engines, dialects(), local, local)
            try:
                await proxy.start()
                await eventually(lambda: written(bench, 1))
                if not asking._count:
                    await publish(bench, 5)
                await eventually(lambda: asking.called(proxy, 5))  # noqa: B023 - it is called in this round alone
            finally:
                await proxy.stop(drain_s=0.0)
    assert len(await processes(bench)) == 1, "the second had nothing to add"
