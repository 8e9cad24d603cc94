"""Requests whose owner doesn't answer: held, asked again, served by the next owner, or told to come again.

The other owner is a stand-in: a listener of the test's own, whose heartbeats the test writes, since a real proxy can't be made to do wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from proxy.app import Proxy
from tests.proxy.conftest import Bench
from tests.proxy.peers.test_forwarding import SESSIONS, ask, figure
from tests.waiting import eventually
from topics import workers
from topics.log.producer import LogProducer
from topics.workers import Heartbeat

Behaves = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BEAT_S = 0.2


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.log.liveness.LEASE_MS", 2_500)
    monkeypatch.setattr("proxy.peers.route.HOLD_S", 6.0)


class Other:
    """A stand-in proxy: where it listens, what it does with a connection, and whether it beats."""

    def __init__(self, bench: Bench, behaves: Behaves) -> None:
        self.connections = 0
        self.beats = True
        self._bench = bench
        self._behaves = behaves

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._behaves(reader, writer)
        finally:
            writer.close()

    async def live(self, address: str) -> None:
        producer = LogProducer(self._bench.settings)
        await producer.start()
        try:
            while True:
                if self.beats:
                    beat = Heartbeat("other", "proxy", "elsewhere", 1, address=address)
                    await producer.send(workers.TOPIC, beat, key="other")
                await asyncio.sleep(BEAT_S)
        finally:
            await producer.stop()


@asynccontextmanager
async def beside(bench: Bench, proxy: Proxy, behaves: Behaves, *, listens: bool = True) -> AsyncIterator[Other]:
    other = Other(bench, behaves)
    server = await asyncio.start_server(other.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    if not listens:
        server.close()
    living = asyncio.ensure_future(other.live(f"http://{host}:{port}"))
    try:
        await eventually(lambda: len(proxy._ownership.peers) == 2)
        yield other
    finally:
        living.cancel()
        await asyncio.wait([living])
        server.close()


async def hangs(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


async def cuts(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


def the_others(proxy: Proxy) -> str:
    return next(session for session in SESSIONS if not proxy._ownership.is_mine(session))


@pytest.mark.parametrize("listens", [True, False], ids=["hangs", "unreachable"])
async def test_a_lost_owners_session_is_served_by_the_next_within_the_same_request(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession, listens: bool
) -> None:
    async with beside(bench, proxy, hangs, listens=listens) as other:
        session = the_others(proxy)
        key = bench.key(session, "c1", **await bench.open(session))
        asking = asyncio.ensure_future(ask(http, proxy, key))
        if listens:
            await eventually(lambda: other.connections == 1)
        other.beats = False
        async with await asking as response:
            assert response.status == 200
            answered = (await response.json())["id"]
        [call] = await bench.calls(1, session)
        assert call.call_id == answered
        assert figure(proxy, "polar_proxy_held_total") == 1
        assert figure(proxy, "polar_proxy_read_back_total") == 1
        assert bool(figure(proxy, "polar_proxy_forwarded_total", outcome="lost")) == listens


@pytest.mark.parametrize(("behaves", "outcome"), [(cuts, "cut"), (refuses, "refused")])
async def test_an_owner_that_never_answers_is_asked_again_and_then_given_up(
    proxy: Proxy,
    bench: Bench,
    http: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    behaves: Behaves,
    outcome: str,
) -> None:
    """After four cuts, or when the hold ends; `test_route.py` shows both in full."""
    monkeypatch.setattr("proxy.peers.route.HOLD_S", 1.0)
    async with beside(bench, proxy, behaves) as other:
        async with ask(http, proxy, bench.key(the_others(proxy)), stream=outcome == "refused") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert other.connections == figure(proxy, "polar_proxy_forwarded_total", outcome=outcome)
        assert other.connections == 4 if outcome == "cut" else other.connections > 2


async def test_a_harness_that_hangs_up_while_it_is_held_costs_nothing(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    async with beside(bench, proxy, hangs, listens=False):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await ask(http, proxy, bench.key(the_others(proxy)))
        await eventually(lambda: not proxy._model_api.replies)
    assert len(proxy._claims) == 0


async def test_stopping_ends_what_is_held(proxy: Proxy, bench: Bench, http: aiohttp.ClientSession) -> None:
    async with beside(bench, proxy, hangs):
        asking = asyncio.ensure_future(ask(http, proxy, bench.key(the_others(proxy))))
        await eventually(lambda: bool(proxy._model_api.replies))
        await proxy.stop(drain_s=0.2)
        async with await asking as response:
            assert response.status == 503
