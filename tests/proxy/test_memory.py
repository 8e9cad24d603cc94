"""What a proxy is done with is gone at once: no cycles that would wait for Python's collector, which looks seldom here (`proxy/run.py`)."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import msgspec
import pytest

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Garbage, Hang
from proxy.app import Proxy
from proxy.session_key import KEY_HEADER
from tests.proxy.conftest import Bench
from tests.waiting import eventually
from topics.completions import Disowned

SESSIONS = 3
TURNS = 4
HI = {"messages": [{"role": "user", "content": "hi"}]}
OURS = ("proxy.", "topics.", "topics.types.")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing is collected until the test does it, and then it is kept to be looked at."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_calls_and_sessions_that_end_leave_no_cycles(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession, uncollected: None
) -> None:
    for number in range(SESSIONS):
        session, claim = f"t.{number}", f"c{number}"
        await ask(proxy, http, bench.key(session, claim))
        await bench.close_key(session, claim)
    await eventually(lambda: not len(proxy._claims))
    await asyncio.sleep(0)  # callbacks of the last task
    assert not in_cycles()


async def refused(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    async with aiohttp.ClientSession() as http, http.post(calls_at(proxy), headers=shown(bench), json=[]) as response:
        assert response.status == 400


async def failed(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Garbage(form="no_token_ids"))
    async with aiohttp.ClientSession() as http, http.post(calls_at(proxy), headers=shown(bench), json=HI) as response:
        assert response.status == 502


async def hung_up(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Hang())
    async with aiohttp.ClientSession() as http:
        asking = asyncio.ensure_future(http.post(calls_at(proxy), headers=shown(bench), json=HI))
        await eventually(lambda: not scripted.faults.pending())
        asking.cancel()
        await bench.calls(1)


async def closed(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Hang())
    async with aiohttp.ClientSession() as http:
        asking = asyncio.ensure_future(http.post(calls_at(proxy), headers=shown(bench), json=HI))
        await eventually(lambda: not scripted.faults.pending())
        await bench.close_key()
        assert (await asking).status == 409


async def stalled(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    host, port = proxy.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = msgspec.json.encode({"input": "hi", "metadata": {"a": "x" * 5_000_000}, "stream": True})
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: x\r\n{KEY_HEADER}: {bench.key()}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await bench.log(lambda found: any(isinstance(record, Disowned) for record in found))
    writer.close()


@pytest.mark.parametrize("end", [refused, failed, hung_up, closed, stalled])
async def test_calls_that_are_not_answered_leave_none_either(
    proxy: Proxy,
    bench: Bench,
    scripted: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    uncollected: None,
    end: Callable[[Proxy, Bench, ScriptedEngine], Awaitable[None]],
) -> None:
    monkeypatch.setattr("proxy.streaming.DELIVERY_S", 0.3)
    await end(proxy, bench, scripted)
    await eventually(lambda: not proxy._model_api.replies)
    await asyncio.sleep(0.1)  # aiohttp's own part of a request
    assert not in_cycles()


def in_cycles() -> dict[str, int]:
    """How many objects of ours, and of aiohttp's that hold them, only the collector finds."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    left = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    return {name: count for name, count in left.items() if name.startswith(OURS)}


def calls_at(proxy: Proxy) -> str:
    return f"{proxy.url}/v1/chat/completions"


def shown(bench: Bench) -> dict[str, str]:
    return {KEY_HEADER: bench.key()}


async def ask(proxy: Proxy, http: aiohttp.ClientSession, key: str) -> None:
    """A conversation of some turns."""
    messages = [{"role": "user", "content": "hi"}]
    for _ in range(TURNS):
        body = {"model": "m", "messages": messages, "max_tokens": 20}
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            told = await response.json()
        messages += [told["choices"][0]["message"], {"role": "user", "content": "go on"}]
