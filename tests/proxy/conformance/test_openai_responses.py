"""The official client on the Responses API, through a real proxy: what it saw is what the log holds, and what the engine sampled."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from polar.scripted.scripts import ScriptCall, ScriptTurn
from proxy.app import Proxy
from proxy.chat import Message
from tests.proxy.conformance.conftest import check_growth, script
from tests.proxy.conftest import Bench
from tests.waiting import eventually
from topics.types.completion import CallOutcome, Completion
from topics.types.tokens import unpack_ids

PATCH = "*** Begin Patch\n*** Add File: é.txt\n+hi\n*** End Patch\n"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCRIPTS = [
    script(
        "work",
        ScriptTurn(
            text="I look.",
            reasoning="Hm, hm.",
            calls=(
                ScriptCall("bash", '{"command" : "ls"}'),
                ScriptCall("clock__sleep", '{"ms":1, broken'),
                ScriptCall("patch", json.dumps({"input": PATCH})),
            ),
        ),
        ScriptTurn(reasoning="Again.", calls=(ScriptCall("patch", "no JSON"),)),
        ScriptTurn(text="Done."),
    ),
    script("weather", ScriptTurn(text='{"city":"Bern","degrees":21}')),
]
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "bash",
        "strict": False,
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
    {
        "type": "namespace",
        "name": "clock",
        "description": "Time.",
        "tools": [{"type": "function", "name": "sleep", "parameters": {"type": "object", "properties": {}}}],
    },
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
]


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine(SCRIPTS)


async def said(client: AsyncOpenAI, stream: bool, **asked: Any) -> Response:
    """A response as a client that reads bodies, or one that reads streams, comes to have it."""
    if not stream:
        whole: Response = await client.responses.create(model="m", **asked)
        return whole
    async with client.responses.stream(model="m", **asked) as events:
        return await events.get_final_response()


def echo(response: Response) -> list[Any]:
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]


def results(response: Response) -> list[Any]:
    return [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": [{"type": "input_text", "text": "ok"}]}
        for item in response.output
        if item.type in ("function_call", "custom_tool_call")
    ]


def check(response: Response, call: Completion, sampled: Any) -> Message:
    """The client's view, the log's and the engine's of one call are the same. The message on the log."""
    assert (response.id, call.outcome, call.dialect) == (call.call_id, CallOutcome.ANSWERED, "openai_responses")
    assert unpack_ids(call.sampled).tolist() == sampled.token_ids
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        len(sampled.prompt_token_ids),
        len(sampled.token_ids),
    )
    message = msgspec.json.decode(call.answer, type=Message)
    assert response.output_text == (message.content or "")
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.summary]
    assert "".join(thoughts) == (message.reasoning or "")
    calls = [item for item in response.output if item.type in ("function_call", "custom_tool_call")]
    assert [item.call_id for item in calls] == [one.id for one in message.tool_calls]
    for item, one in zip(calls, message.tool_calls, strict=True):
        if item.type == "function_call":
            prefix = "" if item.namespace is None else f"{item.namespace}__"
            assert (prefix + item.name, item.arguments) == (one.function.name, one.function.arguments)
    return message


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_in_several_turns_are_one_growing_prompt(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    history: list[Any] = [{"role": "user", "content": "work"}]
    asked = {"tools": TOOLS, "store": False, "include": ["reasoning.encrypted_content"]}
    seen = []
    for _ in range(3):
        response = await said(client, stream, input=history, **asked)
        seen.append(response)
        history += [*echo(response), *results(response)]
    assert seen[-1].output_text == "Done."
    assert [item.input for response in seen for item in response.output if item.type == "custom_tool_call"] == [
        PATCH,
        "no JSON",
    ]

    calls, books = await bench.calls(3), scripted.record.calls("t.0")
    messages = [check(*views) for views in zip(seen, calls, books, strict=True)]
    assert [len(message.tool_calls) for message in messages] == [3, 1, 0]
    check_growth(scripted)
    assert [call.prompt.base for call in calls[1:]] == [call.call_id for call in calls[:2]]
    assert [call.stream for call in calls] == [stream] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_images_reach_the_engine(client: AsyncOpenAI, bench: Bench, stream: bool) -> None:
    parts = [{"type": "input_text", "text": "what is this?"}, {"type": "input_image", "image_url": PIXEL}]
    await said(client, stream, input=[{"role": "user", "content": parts}])
    [call] = await bench.calls(1)
    assert json.loads(call.messages.rest) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
            ],
        }
    ]


class Weather(BaseModel):
    """What the model is held to."""

    city: str
    degrees: int


async def test_structured_output_is_parsed_by_the_client(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    parsed = await client.responses.parse(model="m", input="weather?", text_format=Weather)
    async with client.responses.stream(model="m", input="weather?", text_format=Weather) as events:
        streamed = await events.get_final_response()
    assert parsed.output_parsed == streamed.output_parsed == Weather(city="Bern", degrees=21)
    [first, _] = await bench.calls(2)
    [sampled, _] = scripted.record.calls("t.0")
    told = sampled.parameters["response_format"]["json_schema"]
    assert (told["name"], told["strict"], sorted(told["schema"]["properties"])) == (
        "Weather",
        True,
        ["city", "degrees"],
    )
    assert first.sampling.grammar


async def test_an_answer_without_room_is_incomplete(client: AsyncOpenAI, bench: Bench) -> None:
    whole = await client.responses.create(model="m", input="weather?", max_output_tokens=2)
    events = [e async for e in await client.responses.create(model="m", input="work", max_output_tokens=2, stream=True)]
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
            "incomplete",
            "max_output_tokens",
        )
    for call in await bench.calls(2):
        assert (call.finish_reason, len(unpack_ids(call.sampled))) == ("length", 2)


async def test_input_tokens_are_counted_and_nothing_is_sampled(client: AsyncOpenAI, scripted: ScriptedEngine) -> None:
    counted = await client.responses.input_tokens.count(model="m", input="work", tools=TOOLS)
    assert not scripted.record.calls("t.0")
    response = await client.responses.create(model="m", input="work", tools=TOOLS)
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


async def test_a_count_does_not_go_on_from_a_response_and_says_what_to_send(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="m", input="work", tools=TOOLS)
    with pytest.raises(openai.BadRequestError, match="send the whole conversation as input") as refused:
        await client.responses.input_tokens.count(model="m", input="more", previous_response_id=first.id)
    assert (refused.value.param, refused.value.type) == ("previous_response_id", "invalid_request_error")


async def test_what_is_refused_is_openais_error(client: AsyncOpenAI, proxy: Proxy) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_1"}])
    assert (refused.value.param, refused.value.type) == ("input[0]", "invalid_request_error")
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key="sk-other") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.responses.create(model="m", input="x")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_own_retries_ride_an_overload_out(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("proxy.engines.retry.PAUSES_S", ())
    scripted.faults.add(Status(status=429, retry_after_s=1))
    response = await said(client.with_options(max_retries=1), stream, input="weather?")
    failed, answered = await bench.calls(2)
    assert (failed.outcome, failed.error and failed.error.code) == (CallOutcome.FAILED, "overloaded")
    check(response, answered, scripted.record.calls("t.0")[-1])


async def test_a_stream_that_fails_after_its_headers_says_so(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=60))
    async with client.responses.stream(
        model="m", input="weather?"
    ) as stream:  # a helper that takes nothing before `created`
        await bench.close_key()
        created, _, failed = [event async for event in stream]
    assert created.type == "response.created"
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.code == "invalid_prompt"
    [call] = await bench.calls(1)
    assert call.outcome is CallOutcome.ABANDONED


async def test_a_websocket_is_turned_away(proxy: Proxy, http: Any) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"}
    async with http.get(proxy.url + "/v1/responses", headers=upgrade) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (426, "upgrade_required")


async def test_a_harness_that_hangs_up_is_recorded(client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Slow(delay_s=60))
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.5).responses.create(model="m", input="x")
    await eventually(lambda: not scripted.faults.pending())
    [call] = await bench.calls(1)
    assert (call.outcome, call.error and call.error.code) == (CallOutcome.ABANDONED, "hung_up")
