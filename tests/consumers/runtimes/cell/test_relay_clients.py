"""Every provider's official client through the relay, at a real proxy: the session's key counts, whatever key the client has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from consumers.runtimes.cell.relay import model_relay
from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Hang
from proxy.app import Proxy
from proxy.errors import Refusal
from tests.consumers.runtimes.cell.wires import client_of, listening
from tests.proxy.conformance.clients import Chat, Generate, Messages, Responses
from tests.proxy.conftest import Bench, bench, engine_url, proxy, scripted
from tests.waiting import eventually
from topics.types.completion import CallOutcome
from topics.types.tokens import unpack_ids

__all__ = ["bench", "engine_url", "proxy", "scripted"]  # fixtures
# How Google's client makes its own sessions of aiohttp.
pytestmark = [
    pytest.mark.contract,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
CLIENTS = (Chat, Responses, Messages, Generate)
PLACEHOLDER = "sk-polar-placeholder"


@pytest.fixture
async def url(proxy: Proxy, bench: Bench) -> AsyncIterator[str]:
    """The base URL inside of session t.0's cell."""
    listener = listening()
    async with model_relay(listener, proxy.url, bench.key("t.0")):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
async def test_a_client_with_a_placeholder_calls_as_its_cells_session(
    kind: type[Any], stream: bool, url: str, bench: Bench, scripted: ScriptedEngine
) -> None:
    async with kind(url, PLACEHOLDER) as client:
        for text in ("hi", "work " * 20_000):
            [reply] = await client.ask([client.user(text)], stream)
            assert reply.text
    calls = await bench.calls(2, "t.0")
    assert [call.dialect for call in calls] == [kind.dialect] * 2
    sampled = scripted.record.calls("t.0")
    assert [unpack_ids(call.sampled).tolist() for call in calls] == [one.token_ids for one in sampled]


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
async def test_another_sessions_key_is_worth_nothing_inside(
    kind: type[Any], url: str, bench: Bench, scripted: ScriptedEngine
) -> None:
    stolen = bench.key("other.0", "c2")
    async with kind(url, stolen) as client:
        await client.ask([client.user("hi")])
    async with aiohttp.ClientSession() as http:
        for path in (f"/s/{stolen}/v1/chat/completions", f"/v1/chat/completions?key={stolen}"):
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            async with http.post(url + path, json=body, headers={"X-Polar-Key": stolen}) as response:
                assert response.status == 200
    await bench.calls(3, "t.0")
    assert not scripted.record.calls("other.0")


async def test_a_closed_key_is_refused_inside_as_outside(url: str, bench: Bench) -> None:
    await bench.close_key("t.0")

    async def refused() -> bool:
        async with Chat(url, PLACEHOLDER) as client:
            try:
                await client.ask([client.user("hi")])
            except Chat.error as error:
                return client.word(error) == Chat.words[Refusal.CLOSED]
        return False

    assert await eventually(refused)


async def test_a_client_that_hangs_up_ends_its_call_at_the_engine(
    url: str, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Hang())
    async with aiohttp.ClientSession() as http:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(TimeoutError):
            await http.post(url + "/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=0.3))
    [call] = await bench.calls(1, "t.0")
    assert call.outcome is CallOutcome.ABANDONED


async def test_a_websocket_is_turned_away_as_by_the_proxy(url: str) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    async with aiohttp.ClientSession() as http, http.get(url + "/v1/responses", headers=upgrade) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (426, "upgrade_required")


async def test_a_large_body_is_expected_chunked_and_answered(url: str, bench: Bench) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"model": "m", "messages": [{"role": "user", "content": "'
        for _ in range(100):
            yield b"a" * 1000
        yield b'"}]}'

    headers = {"Content-Type": "application/json", "Expect": "100-continue"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + "/v1/chat/completions", data=parts(), headers=headers) as response,
    ):
        assert response.status == 200
    await bench.calls(1, "t.0")


async def test_pipelined_calls_are_answered_in_order(proxy: Proxy, bench: Bench) -> None:
    listener = listening()
    async with model_relay(listener, proxy.url, bench.key("t.0")), client_of(listener) as client:
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\nGET /nothing HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
        await client.until(b"]}")
        assert (await client.head()).startswith(b"HTTP/1.1 404 ")
