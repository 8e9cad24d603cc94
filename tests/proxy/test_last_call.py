"""What a proxy tells a run worker: whether a failure of the engine or of a proxy ended the last call of its harness."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from openai import AsyncOpenAI

from polar.scripted.app import running
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Cut, Fault, Hang, Status
from polar.scripted.scripts import Script, ScriptTurn, Variant
from proxy.app import Proxy
from proxy.engines import retry
from tests.proxy.conftest import Bench, proxied
from tests.waiting import eventually
from topics.types.last_call import PATH, LastCall

HI = [{"role": "user", "content": "hi"}]
OUTAGE = 4
"""Failed requests that make an outage: a call's three attempts, and the proxy's own request after them."""
POISON = [{"role": "user", "content": "answer this with an error"}]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", (0.01, 0.01))


async def told(http: aiohttp.ClientSession, proxy: Proxy, key: str) -> LastCall:
    async with http.get(proxy.url + PATH, headers={"Authorization": f"Bearer {key}"}) as response:
        assert response.status == 200, await response.text()
        return msgspec.json.decode(await response.read(), type=LastCall)


async def call(client: AsyncOpenAI, **changes: object) -> None:
    await client.chat.completions.create(**{"model": "m", "messages": HI} | changes)  # type: ignore[call-overload]


async def test_the_last_call_that_ended_counts_and_only_failures_of_ours(
    proxy: Proxy, bench: Bench, client: AsyncOpenAI, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    key = bench.key()
    assert await told(http, proxy, key) == LastCall()
    await call(client)
    assert await told(http, proxy, key) == LastCall()
    scripted.faults.add(Status(status=500, times=OUTAGE))
    with pytest.raises(openai.InternalServerError):
        await call(client)
    failed = await told(http, proxy, key)
    assert failed.failure is not None
    assert (failed.failure.code, failed.failure.status, failed.moved) == ("server_error", 500, False)
    # The harness gives this one up.
    scripted.faults.add(Hang())
    waiting = asyncio.create_task(call(client, messages=[*HI, *HI]))
    await eventually(lambda: "polar_proxy_calls_in_flight 1.0" in proxy._metrics.text().decode())
    waiting.cancel()
    await eventually(lambda: "polar_proxy_calls_in_flight 0.0" in proxy._metrics.text().decode())
    assert await told(http, proxy, key) == failed
    await call(client)
    assert await told(http, proxy, key) == LastCall()
    scripted.faults.add(Status(status=400))
    with pytest.raises(openai.BadRequestError):
        await call(client, messages=[*HI, *HI, *HI])
    assert await told(http, proxy, key) == LastCall()


@pytest.mark.parametrize("fault", [Status(status=500, times=99), Cut(times=99)], ids=["error", "cut"])
async def test_a_request_that_a_working_engine_cannot_answer_is_at_fault(
    bench: Bench, http: aiohttp.ClientSession, fault: Fault
) -> None:
    engine = ScriptedEngine([Script("poison", POISON[0]["content"], (Variant((ScriptTurn(fault=fault),)),))])
    async with running(engine) as url, proxied(bench, url) as proxy:
        key = bench.key()
        async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=key, max_retries=0) as client:
            with pytest.raises(openai.InternalServerError, match="unanswerable"):
                await call(client, messages=POISON)
        assert await told(http, proxy, key) == LastCall()


async def test_a_call_survives_an_outage_that_ends_while_it_is_tried(
    client: AsyncOpenAI, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Status(status=500, times=3))
    await call(client)


async def test_any_proxy_knows_and_one_that_took_the_session_over_says_so(
    bench: Bench, engine_url: str, scripted: ScriptedEngine, http: aiohttp.ClientSession
) -> None:
    opened: dict[str, Any] = await bench.open()
    key = bench.key(**opened)
    async with proxied(bench, engine_url) as first:
        async with AsyncExitStack() as stack:
            second = await stack.enter_async_context(proxied(bench, engine_url))
            await eventually(lambda: all(len(proxy._ownership.peers) == 2 for proxy in (first, second)))
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=second.url + "/v1", api_key=key, max_retries=0)
            )
            scripted.faults.add(Status(status=500, times=OUTAGE))
            with pytest.raises(openai.InternalServerError):
                await call(client)
            failed = await told(http, first, key)
            assert failed == await told(http, second, key)
            assert failed.failure is not None
            owner = first if first._ownership.is_mine("t.0") else second
        await eventually(lambda: first._ownership.is_mine("t.0"))
        after = await told(http, first, key)
    assert after == (failed if owner is first else LastCall(moved=True))


async def test_a_call_that_a_harness_gave_up_counts_if_the_engine_was_down(
    bench: Bench, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "PAUSES_S", (5.0,))
    async with proxied(bench, "http://127.0.0.1:9") as proxy:
        async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=bench.key(), max_retries=0, timeout=0.5) as client:
            with pytest.raises(openai.APITimeoutError):
                await call(client)

        async def is_told() -> bool:
            failure = (await told(http, proxy, bench.key())).failure
            return failure is not None and failure.code == "unreachable"

        await eventually(is_told)


async def test_a_stranger_is_told_nothing(proxy: Proxy, http: aiohttp.ClientSession) -> None:
    async with http.get(proxy.url + PATH, headers={"Authorization": "Bearer sk-polar-x"}) as response:
        assert response.status == 401
