"""The official client on the Messages API, through a real proxy: what it saw is what the log holds, and what the engine sampled."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import msgspec
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message as AnthropicMessage
from pydantic import BaseModel

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from polar.scripted.scripts import ScriptCall, ScriptTurn
from proxy.app import Proxy
from proxy.chat import Message
from tests.proxy.conformance.conftest import check_growth, script
from tests.proxy.conftest import Bench
from topics.types.completion import CallOutcome, Completion
from topics.types.tokens import unpack_ids

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
BROKEN = '{"command" : "ls", oops'
SCRIPTS = [
    script(
        "work",
        ScriptTurn(
            text="I look.",
            reasoning=" Hm, hm. ",
            calls=(ScriptCall("bash", '{"command" : "ls",\t"n":1.0, "é":"\\u00e9"}'), ScriptCall("read", "{}")),
        ),
        ScriptTurn(calls=(ScriptCall("read", '{"path":"a"}'),)),
        ScriptTurn(text="Done.", reasoning="All there."),
    ),
    script("broken", ScriptTurn(calls=(ScriptCall("bash", BROKEN),)), ScriptTurn(text="Oh.")),
    script("read", ScriptTurn(calls=(ScriptCall("read", "{}"),)), ScriptTurn(text="Read.")),
    script("weather", ScriptTurn(text='{"city":"Bern","degrees":21}')),
]
TOOLS: list[Any] = [
    {
        "name": "bash",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
        "cache_control": {"type": "ephemeral"},
    },
    {"name": "read", "type": "custom", "description": "Reads.", "input_schema": {"type": "object"}},
]
CONTEXT = 4096
"""The engine's, in tokens."""
WEATHER: list[Any] = [{"role": "user", "content": "weather?"}]


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine(SCRIPTS, max_model_len=CONTEXT)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams open at once, and the engine isn't asked again."""
    monkeypatch.setattr("proxy.streaming.QUIET_S", 0.02)
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", ())


@pytest.fixture
async def claude(proxy: Proxy, bench: Bench) -> AsyncIterator[AsyncAnthropic]:
    """The official client with session t.0's key; it doesn't try again by itself."""
    async with AsyncAnthropic(base_url=proxy.url, api_key=bench.key(), max_retries=0) as client:
        yield client


async def said(
    client: AsyncAnthropic, stream: bool, messages: list[Any], *, max_tokens: int = 1000, **asked: Any
) -> AnthropicMessage:
    """A message as a client that reads bodies, or one that reads streams, comes to have it."""
    if not stream:
        whole: AnthropicMessage = await client.messages.create(
            model="m", max_tokens=max_tokens, messages=messages, **asked
        )
        return whole
    async with client.messages.stream(model="m", max_tokens=max_tokens, messages=messages, **asked) as events:
        return await events.get_final_message()


def results(message: AnthropicMessage) -> list[Any]:
    """Of every tool call, in order; the second one is an error."""
    calls = [block for block in message.content if block.type == "tool_use"]
    return [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": [{"type": "text", "text": "ok"}],
            "is_error": at == 1,
        }
        for at, call in enumerate(calls)
    ]


def check(message: AnthropicMessage, call: Completion, sampled: Any, shown: bool = True) -> Message:
    """The client's view, the log's and the engine's of one call are the same. The message on the log."""
    assert (message.id, call.outcome, call.dialect) == (call.call_id, CallOutcome.ANSWERED, "anthropic_messages")
    assert unpack_ids(call.sampled).tolist() == sampled.token_ids
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == len(sampled.prompt_token_ids)
    assert usage.output_tokens == len(sampled.token_ids)
    logged = msgspec.json.decode(call.answer, type=Message)
    assert "".join(block.text for block in message.content if block.type == "text") == (logged.content or "")
    thoughts = [block.thinking for block in message.content if block.type == "thinking"]
    assert thoughts == ([logged.reasoning if shown else ""] if logged.reasoning else [])
    uses = [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"]
    assert uses == [(c.id, c.function.name, json.loads(c.function.arguments)) for c in logged.tool_calls]
    return logged


@pytest.mark.parametrize(("stream", "display"), [(True, "omitted"), (False, "summarized")])
async def test_tools_in_several_turns_are_one_growing_prompt(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine, stream: bool, display: str
) -> None:
    history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "work"}]}]
    seen = []
    for _ in range(3):
        message = await said(
            claude,
            stream,
            history,
            tools=TOOLS,
            system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
            thinking={"type": "adaptive", "display": display},
        )
        seen.append(message)
        history = [unmarked(one) for one in history]
        history += [{"role": "assistant", "content": message.content}]
        history += [{"role": "user", "content": marked(results(message))}]
    assert [message.stop_reason for message in seen] == ["tool_use", "tool_use", "end_turn"]

    calls, books = await bench.calls(3), scripted.record.calls("t.0")
    logged = [check(*views, shown=display == "summarized") for views in zip(seen, calls, books, strict=True)]
    assert [len(message.tool_calls) for message in logged] == [2, 1, 0]
    check_growth(scripted)
    for at in (1, 2):
        assert calls[at].prompt.base == calls[at - 1].call_id
    assert [call.stream for call in calls] == [stream] * 3


def marked(blocks: list[Any]) -> list[Any]:
    """With a cache breakpoint on the last block, as harnesses set it."""
    return [*blocks[:-1], *(block | {"cache_control": {"type": "ephemeral"}} for block in blocks[-1:])]


def unmarked(message: dict[str, Any]) -> dict[str, Any]:
    """As harnesses send a message again: without its breakpoint, a lone text as a string."""
    if message["role"] == "assistant" or isinstance(message["content"], str):
        return message
    blocks = [{name: block[name] for name in block if name != "cache_control"} for block in message["content"]]
    if [block["type"] for block in blocks] == ["text"]:
        return message | {"content": blocks[0]["text"]}
    return message | {"content": [block | {"content": "ok"} for block in blocks]}


async def test_arguments_that_are_no_json_reach_the_client_and_come_back(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine
) -> None:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 1000, "tools": TOOLS}
    history: list[Any] = [{"role": "user", "content": "broken"}]
    raw = [event async for event in await claude.messages.create(**asked, messages=history, stream=True)]
    deltas = [event.delta for event in raw if event.type == "content_block_delta"]
    assert [delta.partial_json for delta in deltas if delta.type == "input_json_delta"] == [BROKEN]

    message = await claude.messages.create(**asked, messages=history)
    [block] = message.content
    assert block.type == "tool_use"
    assert block.input == {"__unparsedToolInput": {"raw": BROKEN, "len": len(BROKEN)}}
    history += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results(message)}]
    assert (await said(claude, True, history, tools=TOOLS)).content[0].type == "text"
    await bench.calls(3)
    check_growth(scripted, first=1)


async def test_images_reach_the_engine_where_they_stood(claude: AsyncAnthropic, bench: Bench) -> None:
    shot = {"type": "tool_result", "tool_use_id": "t1", "content": [IMAGE]}
    use = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "what is this?"}, IMAGE]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [shot]},
    ]
    await said(claude, True, history, tools=TOOLS)
    [call] = await bench.calls(1)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    first, _, last = json.loads(call.messages.rest)
    assert first["content"] == [{"type": "text", "text": "what is this?"}, image]
    assert last == {"role": "tool", "tool_call_id": "t1", "content": [image]}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_runner_gives_up_its_thread_and_sends_the_conversation_whole(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    @anthropic.beta_async_tool
    async def read() -> str:
        """Reads."""
        return "ok"

    runner: Any = claude.beta.messages.tool_runner(
        model="m", max_tokens=100, tools=[read], messages=[{"role": "user", "content": "read"}], stream=stream
    )
    last = await runner.until_done()
    assert [block.text for block in last.content] == ["Read."]
    await bench.calls(2)
    check_growth(scripted)


class Weather(BaseModel):
    """What the model is held to."""

    city: str
    degrees: int


async def test_structured_output_is_parsed_by_the_client(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine
) -> None:
    parsed = await claude.messages.parse(model="m", max_tokens=100, messages=WEATHER, output_format=Weather)
    assert parsed.parsed_output == Weather(city="Bern", degrees=21)
    [call] = await bench.calls(1)
    [sampled] = scripted.record.calls("t.0")
    told = sampled.parameters["response_format"]["json_schema"]
    assert (told["strict"], sorted(told["schema"]["properties"])) == (True, ["city", "degrees"])
    assert call.sampling.grammar


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_room_stops_at_max_tokens(claude: AsyncAnthropic, bench: Bench, stream: bool) -> None:
    message = await said(claude, stream, WEATHER, max_tokens=2)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)
    [call] = await bench.calls(1)
    assert (call.finish_reason, len(unpack_ids(call.sampled))) == ("length", 2)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_is_named(claude: AsyncAnthropic, bench: Bench, stream: bool) -> None:
    message = await said(claude, stream, WEATHER, stop_sequences=["never", '"degrees"'])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", '"degrees"')
    assert [block.text for block in message.content if block.type == "text"] == ['{"city":"Bern",']
    [call] = await bench.calls(1)
    assert call.finish_reason == "stop"


async def test_a_tool_that_is_found_later_leaves_the_prompt_before_it_as_it_was(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine
) -> None:
    later = {"name": "fetch", "description": "Fetches.", "input_schema": {"type": "object"}, "defer_loading": True}
    history: list[Any] = [{"role": "user", "content": "work"}]
    first = await said(claude, True, history, tools=TOOLS)
    found, other = results(first)
    history += [{"role": "assistant", "content": first.content}]
    history += [
        {"role": "user", "content": [found | {"content": [{"type": "tool_reference", "tool_name": "fetch"}]}, other]}
    ]
    await said(claude, True, history, tools=[later, *TOOLS])
    calls, books = await bench.calls(2), scripted.record.calls("t.0")
    assert calls[1].prompt.shared == len(books[0].prompt_token_ids) + len(books[0].token_ids)
    told = msgspec.json.decode(calls[1].messages.rest, type=list[Message])
    assert told[0].content == (
        '<function>{"name":"fetch","description":"Fetches.","parameters":{"type":"object"}}</function>'
    )


async def test_tokens_are_counted_and_nothing_is_sampled(claude: AsyncAnthropic, scripted: ScriptedEngine) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": WEATHER, "tools": TOOLS, "system": "Be brief."}
    counted = await claude.messages.count_tokens(**asked)
    prefilled: Any = [*WEATHER, {"role": "assistant", "content": "It is"}]
    assert (await claude.messages.count_tokens(**asked | {"messages": prefilled})).input_tokens > counted.input_tokens
    assert not scripted.record.calls("t.0")
    message = await claude.messages.create(max_tokens=100, **asked)
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


async def test_models_are_listed_in_anthropics_form(claude: AsyncAnthropic) -> None:
    [model] = [model async for model in claude.models.list(limit=1000)]
    assert (model.id, model.type) == ("polar-scripted", "model")
    assert (await claude.models.retrieve("polar-scripted")).display_name == "polar-scripted"


async def test_somebody_is_there_for_a_client_that_only_looks(
    proxy: Proxy, bench: Bench, http: aiohttp.ClientSession
) -> None:
    for path in ("/", "/api/hello"):
        for prefix in ("", f"/s/{bench.key()}"):
            async with http.head(proxy.url + prefix + path) as response:
                assert response.status == 200


async def test_a_key_in_the_url_or_as_bearer_is_as_good(proxy: Proxy, bench: Bench) -> None:
    async with AsyncAnthropic(base_url=f"{proxy.url}/s/{bench.key()}", api_key="dummy") as client:
        first = await said(client, False, WEATHER)
    async with AsyncAnthropic(base_url=proxy.url, auth_token=bench.key()) as client:
        second = await said(client, True, WEATHER, extra_query={"beta": "true"})
    assert [call.call_id for call in await bench.calls(2)] == [first.id, second.id]


async def test_what_is_refused_is_anthropics_error(claude: AsyncAnthropic, proxy: Proxy) -> None:
    file: Any = [{"type": "image", "source": {"type": "file", "file_id": "f"}}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        await said(claude, False, [{"role": "user", "content": file}])
    assert refused.value.type == "invalid_request_error"
    assert "messages[0].content[0].source" in str(refused.value)
    async with AsyncAnthropic(base_url=proxy.url, api_key="sk-ant-other", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await said(stranger, True, WEATHER)
    with pytest.raises(anthropic.NotFoundError):
        await claude.post("/v1/complete", cast_to=object, body={})


async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_make_harnesses_compact(
    claude: AsyncAnthropic,
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=rf"prompt is too long: \d+ tokens > {CONTEXT} maximum"):
        await said(claude, True, [{"role": "user", "content": "work " * CONTEXT}])


@pytest.mark.parametrize(("status", "stream"), [(429, True), (503, False), (500, True)])
@pytest.mark.usefixtures("impatient")
async def test_the_clients_own_retries_ride_a_fault_out(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine, status: int, stream: bool
) -> None:
    scripted.faults.add(Status(status=status, retry_after_s=1))
    message = await said(claude.with_options(max_retries=1), stream, WEATHER)
    failed, answered = await bench.calls(2)
    assert failed.outcome is CallOutcome.FAILED
    assert answered.lineage is not None
    assert answered.lineage["retry"] == "1"
    check(message, answered, scripted.record.calls("t.0")[-1])


@pytest.mark.usefixtures("impatient")
async def test_pings_before_the_message_are_no_events_to_the_client(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=0.2))
    asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": WEATHER, "stream": True}
    async with claude.messages.with_streaming_response.create(**asked) as raw:
        body = b"".join([piece async for piece in raw.iter_bytes()])
    assert body.startswith(b'event: ping\ndata: {"type":"ping"}\n\n')
    scripted.faults.add(Slow(delay_s=0.2))
    message = await said(claude, True, WEATHER)
    check(message, (await bench.calls(2))[1], scripted.record.calls("t.0")[1])


@pytest.mark.usefixtures("impatient")
async def test_a_stream_that_fails_after_its_headers_says_so(
    claude: AsyncAnthropic, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=60))
    stream = await claude.messages.create(model="m", max_tokens=100, messages=WEATHER, stream=True)
    await bench.close_key()
    with pytest.raises(anthropic.APIStatusError) as failed:
        async for _ in stream:
            pass
    assert failed.value.type == "conflict_error"
    [call] = await bench.calls(1)
    assert call.outcome is CallOutcome.ABANDONED
