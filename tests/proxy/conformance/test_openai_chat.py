"""OpenAI's official client on Chat Completions: what it saw is what the log holds. The engine is the scripted one, Kafka is real."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ParsedChatCompletionMessage
from pydantic import BaseModel

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.faults import Slow, Status
from polar.scripted.scripts import ScriptCall, ScriptTurn
from proxy.app import Proxy
from proxy.chat import Message
from tests.proxy.conformance.conftest import check_growth, script
from tests.proxy.conftest import Bench
from topics.types.completion import CallOutcome, Completion

Seen = tuple[str, str, list[tuple[str, str, str]]]
"""Text, reasoning, and of each call id, name and arguments."""


LOOK = ScriptCall("run", '{"command" : "ls"}')
SCRIPTS = [
    script(
        "work",
        ScriptTurn(text="I look.", reasoning="Where is it?", calls=(LOOK, ScriptCall("read", {"path": "é.py"}))),
        ScriptTurn(reasoning="Again.", calls=(ScriptCall("run", '{"command": '),)),
        ScriptTurn(text="Done.", reasoning="All seen."),
    ),
    script("judge", ScriptTurn(text='{"name":"x","score":3}')),
    script("mend", ScriptTurn(calls=(ScriptCall("patch", {"input": "*** Begin\né"}),)), ScriptTurn(text="Mended.")),
]
TOOLS: Any = [
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "read", "description": "Reads."}},
]
PATCH: Any = {"type": "custom", "custom": {"name": "patch", "description": "Patches."}}
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine(SCRIPTS)


async def asked(client: AsyncOpenAI, stream: bool, messages: Any, **fields: Any) -> list[ChatCompletionMessage]:
    """The message of each choice; of a stream as the client's own helper puts it together."""
    if not stream:
        body = await client.chat.completions.create(model="m", messages=messages, **fields)
        return [choice.message for choice in body.choices]
    async with client.chat.completions.stream(model="m", messages=messages, **fields) as events:
        async for _ in events:
            pass
        return [choice.message for choice in (await events.get_final_completion()).choices]


def seen(message: ChatCompletionMessage | ParsedChatCompletionMessage[Any]) -> Seen:
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or []
        if call.type == "function"
    ]
    return message.content or "", (message.model_extra or {}).get("reasoning_content", ""), calls


def logged(call: Completion) -> Seen:
    message = msgspec.json.decode(call.answer, type=Message)
    assert not isinstance(message.content, list)
    calls = [(one.id, one.function.name, one.function.arguments) for one in message.tool_calls]
    return message.content or "", message.reasoning or "", calls


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_with_parallel_calls_only_grow(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine, stream: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": "work"}]
    for turn in range(3):
        [message] = await asked(client, stream, messages, tools=TOOLS)
        call = (await bench.calls(turn + 1))[turn]
        assert seen(message) == logged(call)
        messages.append(message.to_dict())
        messages += [
            {"role": "tool", "tool_call_id": call_id, "content": [{"type": "text", "text": f"{name} ran"}]}
            for call_id, name, _ in seen(message)[2]
        ]
    assert "Done." in scripted.record.calls("t.0")[2].text
    check_growth(scripted)


async def test_a_turn_that_codex_parts_in_two_is_the_one_that_was_sampled(
    client: AsyncOpenAI, scripted: ScriptedEngine
) -> None:
    [message] = await asked(client, False, [{"role": "user", "content": "work"}], tools=TOOLS)
    told = message.to_dict()
    calls = told | {"content": None}
    text = {"role": "assistant", "content": told["content"]}
    results = [{"role": "tool", "tool_call_id": call_id, "content": "ran"} for call_id, *_ in seen(message)[2]]
    await asked(client, False, [{"role": "user", "content": "work"}, calls, text, *results], tools=TOOLS)
    check_growth(scripted)


async def test_a_custom_tools_call_is_one_both_ways(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    messages: list[Any] = [{"role": "user", "content": "mend"}]
    [message] = await asked(client, False, messages, tools=[PATCH])
    [call] = message.tool_calls or []
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("patch", "*** Begin\né")
    messages += [message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
    [message] = await asked(client, False, messages, tools=[PATCH])
    assert message.content == "Mended."
    check_growth(scripted)
    assert logged((await bench.calls(1))[0])[2] == [(call.id, "patch", '{"input":"*** Begin\\né"}')]


class Verdict(BaseModel):
    name: str
    score: int | None = None


@pytest.mark.parametrize("stream", [False, True])
async def test_structured_output_is_parsed_and_held_to_a_grammar(
    client: AsyncOpenAI, bench: Bench, stream: bool
) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "judge"}]
    if stream:
        async with client.chat.completions.stream(model="m", messages=messages, response_format=Verdict) as events:
            parsed = (await events.get_final_completion()).choices[0].message.parsed
    else:
        body = await client.chat.completions.parse(model="m", messages=messages, response_format=Verdict)
        parsed = body.choices[0].message.parsed
    assert parsed == Verdict(name="x", score=3)
    assert (await bench.calls(1))[0].sampling.grammar


@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_n_choices_is_a_call_of_its_own(client: AsyncOpenAI, bench: Bench, stream: bool) -> None:
    messages = await asked(client, stream, HI, n=3, temperature=1.0, seed=7)
    calls = sorted(await bench.calls(3), key=lambda call: call.choice)
    assert [call.choice for call in calls] == [0, 1, 2]
    assert [seen(message) for message in messages] == [logged(call) for call in calls]


async def test_an_image_reaches_the_engine_and_the_log(client: AsyncOpenAI, bench: Bench) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "text", "text": "what is it?"},
    ]
    [message] = await asked(client, False, [{"role": "user", "content": parts}])
    [call] = await bench.calls(1)
    assert seen(message) == logged(call)
    assert msgspec.json.decode(call.messages.rest)[0]["content"] == parts


async def test_a_base_url_without_a_version_is_served(proxy: Proxy, bench: Bench) -> None:
    async with AsyncOpenAI(base_url=proxy.url, api_key=bench.key()) as client:
        [message] = await asked(client, True, HI, stream_options={"include_usage": True})
        assert [model.id async for model in client.models.list()] == ["polar-scripted"]
    assert seen(message) == logged((await bench.calls(1))[0])


@pytest.mark.usefixtures("impatient")
async def test_the_client_tries_again_after_overload(proxy: Proxy, bench: Bench, scripted: ScriptedEngine) -> None:
    scripted.faults.add(Status(status=429, times=3))
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=bench.key(), max_retries=2) as client:
        [message] = await asked(client, False, HI)
    failed, answered = await bench.calls(2)
    assert (failed.outcome, answered.outcome) == (CallOutcome.FAILED, CallOutcome.ANSWERED)
    assert seen(message) == logged(answered)


@pytest.mark.usefixtures("impatient")
async def test_keep_alives_are_passed_over_and_an_error_inside_a_stream_is_raised(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    scripted.faults.add(Slow(delay_s=0.2))
    [message] = await asked(client, True, HI)
    assert seen(message) == logged((await bench.calls(1))[0])
    scripted.faults.add(Status(status=500, times=9))
    with pytest.raises(openai.APIError) as refused:
        await asked(client, True, HI)
    assert refused.value.code == "bad_gateway"


async def test_what_is_refused_names_its_field(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await asked(client, False, HI, modalities=["audio"])
    assert (refused.value.param, refused.value.type) == ("modalities", "invalid_request_error")
    assert json.loads(refused.value.response.content)["error"]["code"] is None
