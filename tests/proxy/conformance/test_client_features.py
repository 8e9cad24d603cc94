"""What one provider's client alone does, or alone is told, at a real proxy. The engine is the scripted one, Kafka is real."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import anthropic
import msgspec
import pytest
from google.genai import errors, types

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from polar.scripted.scripts import ScriptCall, ScriptTurn
from proxy.app import Proxy
from proxy.chat import Message
from tests.proxy.conformance.clients import Chat, Generate, Messages, reply_of
from tests.proxy.conformance.conftest import check_growth, script
from tests.proxy.conftest import Bench

# How Google's client makes its own sessions of aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
BROKEN = '{"command" : "ls", oops'
streams = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine(
        [
            script("broken", ScriptTurn(calls=(ScriptCall("bash", BROKEN),)), ScriptTurn(text="Oh.")),
            script("read", ScriptTurn(calls=(ScriptCall("read", "{}"),)), ScriptTurn(text="Read.")),
            script("weather", ScriptTurn(text='{"city":"Bern","degrees":21}')),
            script("blunder", ScriptTurn(text="I try.", calls=(ScriptCall("bash", "[1]"),))),
            script("mend", ScriptTurn(calls=(ScriptCall("patch", {"input": "+é"}),)), ScriptTurn(text="Mended.")),
        ]
    )


# --- Anthropic's client


async def test_arguments_that_are_no_json_reach_anthropics_client_and_come_back(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine
) -> None:
    async with Messages(proxy.url, bench.key()) as claude:
        history = [claude.user("broken")]
        asked = {"model": "m", "max_tokens": 100, "messages": history, "tools": claude.tools, "stream": True}
        raw = [event async for event in await claude.client.messages.create(**asked)]
        deltas = [event.delta for event in raw if event.type == "content_block_delta"]
        assert [delta.partial_json for delta in deltas if delta.type == "input_json_delta"] == [BROKEN]

        [reply] = await claude.ask(history, tools=True)
        [(_, _, arguments)] = reply.calls
        assert arguments == {"__unparsedToolInput": {"raw": BROKEN, "len": len(BROKEN)}}
        [reply] = await claude.ask([*history, *reply.turns, *claude.results(reply)], stream=True, tools=True)
    assert reply.text == "Oh."
    await bench.calls(3)
    check_growth(scripted, first=1)


@streams
async def test_the_tool_runner_gives_up_its_thread_and_sends_the_conversation_whole(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    @anthropic.beta_async_tool
    async def read() -> str:
        """Reads."""
        return "ok"

    async with Messages(proxy.url, bench.key()) as claude:
        runner = claude.client.beta.messages.tool_runner(
            model="m", max_tokens=100, tools=[read], messages=[claude.user("read")], stream=stream
        )
        last = await runner.until_done()
    assert [block.text for block in last.content] == ["Read."]
    await bench.calls(2)
    check_growth(scripted)


@streams
async def test_a_stop_sequence_is_named(proxy: Proxy, bench: Bench, stream: bool) -> None:
    async with Messages(proxy.url, bench.key()) as claude:
        asked = {"model": "m", "max_tokens": 100, "messages": [claude.user("weather?")]}
        asked |= {"stop_sequences": ["never", '"degrees"']}
        if stream:
            async with claude.client.messages.stream(**asked) as events:
                message = await events.get_final_message()
        else:
            message = await claude.client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", '"degrees"')
    assert [block.text for block in message.content if block.type == "text"] == ['{"city":"Bern",']
    assert (await bench.calls(1))[0].finish_reason == "stop"


async def test_a_count_may_end_with_the_assistants_words(proxy: Proxy, bench: Bench) -> None:
    async with Messages(proxy.url, bench.key()) as claude:
        history = [claude.user("weather?")]
        counted = await claude.count([*history, {"role": "assistant", "content": "It is"}])
        assert counted > await claude.count(history)


async def test_anthropics_clients_find_a_server_and_a_key_in_the_url_or_as_bearer_is_as_good(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    keyed = f"{proxy.url}/s/{bench.key()}"
    for path in ("/", "/api/hello"):
        for url in (proxy.url, keyed):
            async with http.head(url + path) as response:
                assert response.status == 200
    async with Messages(keyed, "dummy") as claude:
        [first] = await claude.ask([claude.user("weather?")])
        with pytest.raises(anthropic.NotFoundError):
            await claude.client.post("/v1/complete", cast_to=object, body={})
    async with anthropic.AsyncAnthropic(base_url=proxy.url, auth_token=bench.key()) as bearer:
        asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        second = await bearer.messages.create(**asked, extra_query={"beta": "true"})
    assert [call.call_id for call in await bench.calls(2)] == [first.id, second.id]


async def test_pings_keep_anthropics_streams_open(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.02)
    scripted.faults.add(Slow(delay_s=0.2))
    async with Messages(proxy.url, bench.key()) as claude:
        asked = {"model": "m", "max_tokens": 100, "messages": [claude.user("weather?")], "stream": True}
        async with claude.client.messages.with_streaming_response.create(**asked) as raw:
            body = b"".join([piece async for piece in raw.iter_bytes()])
    assert body.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')


# --- Google's client


async def test_arguments_that_are_no_object_are_malformed_as_at_google(proxy: Proxy, bench: Bench) -> None:
    async with Generate(proxy.url, bench.key()) as google:
        [reply] = await google.ask([google.user("blunder")], tools=True)
    assert (reply.text, reply.calls, reply.stop) == ("", [], "MALFORMED_FUNCTION_CALL")
    message = msgspec.json.decode((await bench.calls(1))[0].answer, type=Message)
    assert (message.content, [call.function.arguments for call in message.tool_calls]) == ("I try.", ["[1]"])


async def test_googles_stream_without_events_is_an_array(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    url = f"{proxy.url}/v1beta/models/m:streamGenerateContent?key={bench.key()}"
    async with http.post(url, json={"contents": [{"parts": [{"text": "hi"}]}]}) as answer:
        assert answer.content_type == "application/json"
        chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in await answer.json()]
    assert reply_of(chunks).text == msgspec.json.decode((await bench.calls(1))[0].answer, type=Message).content


async def test_google_is_told_when_to_come_again_and_of_an_error_inside_a_stream(
    proxy: Proxy, bench: Bench, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.02)
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", (0.2,))
    scripted.faults.add(Status(status=429, retry_after_s=60))
    scripted.faults.add(Status(status=500, times=3))  # two attempts, and the proxy's own request
    async with Generate(proxy.url, bench.key()) as google:
        with pytest.raises(errors.ClientError) as overloaded:
            await google.ask([google.user("hi")])
        with pytest.raises(errors.ServerError) as failed:
            await google.ask([google.user("hi")], stream=True)
    assert (overloaded.value.code, overloaded.value.status) == (429, "RESOURCE_EXHAUSTED")
    [detail] = overloaded.value.details["error"]["details"]
    assert detail["@type"].endswith("RetryInfo")
    assert detail["retryDelay"] == overloaded.value.response.headers["Retry-After"] + "s"
    assert (failed.value.code, failed.value.status) == (502, "INTERNAL")


# --- OpenAI's client


async def test_a_custom_tools_call_is_one_both_ways(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    tools = [{"type": "custom", "custom": {"name": "patch", "description": "Patches."}}]
    messages: list[Any] = [{"role": "user", "content": "mend"}]
    async with Chat(proxy.url, bench.key()) as chat:
        create = chat.client.chat.completions.create
        message = (await create(model="m", messages=messages, tools=tools)).choices[0].message
        [call] = message.tool_calls
        assert (call.type, call.custom.name, call.custom.input) == ("custom", "patch", "+é")
        messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
        mended = await create(model="m", messages=messages, tools=tools)
    assert mended.choices[0].message.content == "Mended."
    check_growth(scripted)
    [logged] = json.loads((await bench.calls(1))[0].answer)["tool_calls"]
    assert (logged["id"], logged["function"]["arguments"]) == (call.id, '{"input":"+é"}')


async def test_a_base_url_without_a_version_is_served(proxy: Proxy, bench: Bench) -> None:
    async with Chat(proxy.url, bench.key()) as chat:
        chat.client.base_url = proxy.url
        [reply] = await chat.ask([chat.user("hi")], stream=True)
        assert await chat.models() == ["polar-scripted"]
    assert reply.text == json.loads((await bench.calls(1))[0].answer)["content"]


async def test_a_websocket_is_turned_away(proxy: Proxy, http: aiohttp.ClientSession) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    async with http.get(proxy.url + "/v1/responses", headers=upgrade) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (426, "upgrade_required")
