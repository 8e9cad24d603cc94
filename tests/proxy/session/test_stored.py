"""Calls and items that are named by their id: what the model reads is the whole conversation, and nobody keeps it twice."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from polar.scripted.engine import Engine as ScriptedEngine
from polar.scripted.scripts import Script, ScriptCall, ScriptTurn, Variant
from proxy.app import Proxy
from proxy.chat import ChatRequest, FunctionCall, Message, ToolCall
from proxy.dialects.base import Wire
from proxy.dialects.openai_responses import OpenAIResponses
from proxy.errors import Refusal, RefusalError
from proxy.session import stored
from proxy.session.stored import StoredCalls
from tests.proxy.conftest import Bench, proxied
from topics.calls.delta import Spelled, spell
from topics.completions import Build
from topics.types.session import Status

SCRIPT = Script(
    "work",
    "work",
    (
        Variant(
            (
                ScriptTurn(reasoning="Hm. ", calls=(ScriptCall("bash", '{"command" :"ls"}'),)),
                ScriptTurn(text="One."),
                ScriptTurn(text="Two."),
            )
        ),
    ),
)
Json = dict[str, Any]
BASH: Any = {"type": "function", "name": "bash", "parameters": {"type": "object", "properties": {}}, "strict": False}


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine([SCRIPT])


# --- what is kept


def user(text: str) -> Message:
    return Message("user", text)


def said(text: str) -> Message:
    return Message("assistant", text)


def keep(kept: StoredCalls, call_id: str, request: ChatRequest, answer: Message) -> None:
    first = request.stored_from
    assert first is not None
    kept.add(call_id, request.messages, Spelled(request.messages), answer, first)


TEXTS = st.text("ab", min_size=1, max_size=2)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 9), st.none() | TEXTS, st.lists(TEXTS, max_size=2), TEXTS), max_size=10))
def test_a_call_inherits_all_that_was_said_before_it_but_instructions(
    turns: list[tuple[int, str | None, list[str], str]],
) -> None:
    kept, inherited = StoredCalls(), list[list[Message]]()
    for at, (after, instructions, texts, answer) in enumerate(turns):
        own = [user(text) for text in texts]
        opening = [] if instructions is None else [Message("system", instructions)]
        before = at - 1 - after % at if at and after else None
        request = ChatRequest(
            [*opening, *own],
            continues=None if before is None else f"c{before}",
            store=True,
            instructions=instructions is not None,
        )
        whole = kept.continued(request)
        history = [] if before is None else inherited[before]
        assert whole.messages == [*opening, *history, *own]
        keep(kept, f"c{at}", whole, said(answer))
        inherited.append([*history, *own, said(answer)])


def test_a_request_that_continues_none_stays_as_it_is() -> None:
    request = ChatRequest([user("hi")])
    assert StoredCalls().continued(request) is request


def test_a_message_is_kept_once_however_many_calls_hold_it() -> None:
    kept = StoredCalls()
    messages = [user("x" * 1000)]
    for at in range(100):
        keep(kept, f"c{at}", ChatRequest(list(messages), store=True), said(f"{at}"))
        messages += [said(f"{at}"), user("go on")]
    assert kept._bytes == sum(len(spell(message)) for message in messages[:-1])


def test_beyond_its_room_only_the_newest_call_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "BYTES", 500)
    kept = StoredCalls()
    for at in range(20):
        keep(kept, f"c{at}", ChatRequest([user("x" * 200 + str(at))], store=True), said("ok"))
        newest = kept.continued(ChatRequest([user("and?")], continues=f"c{at}"))
        assert newest.messages == [user("x" * 200 + str(at)), said("ok"), user("and?")]
        assert kept._bytes <= 500
    with pytest.raises(RefusalError):
        kept.continued(ChatRequest([user("and?")], continues="c0"))


# --- items by their ids

WHOLE = Message("assistant", "I look.", "Hm.", [ToolCall(f"c{at}", FunctionCall("f", "{}")) for at in range(2)])
HEXED = "1" * 32
ITEMS: dict[str, Any] = {
    f"rs_{HEXED}": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    f"msg_{HEXED}": {"type": "message", "role": "assistant", "content": "I look."},
    f"fc_{HEXED}_0": {"type": "function_call", "call_id": "c0", "name": "f", "arguments": "{}"},
    f"fc_{HEXED}_1": {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
}


def items_request(*items: Json, **fields: Any) -> ChatRequest:
    return OpenAIResponses().parse(Wire(json.dumps({"input": items, **fields}).encode()))


def reference(item_id: str) -> Any:
    return {"type": "item_reference", "id": item_id}


@given(st.sets(st.sampled_from([*ITEMS]), min_size=1), st.sets(st.sampled_from([*ITEMS])), st.booleans())
def test_a_reference_reads_as_the_item_that_it_names(sent: set[str], referred: set[str], instructed: bool) -> None:
    kept = StoredCalls()
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), WHOLE)
    whole = [ITEMS[item_id] | {"id": item_id} for item_id in ITEMS if item_id in sent]
    named = [reference(item["id"]) if item["id"] in referred else item for item in whole]
    fields = {"instructions": "Be brief."} if instructed else {}
    opening = {"role": "user", "content": "hi"}
    assert kept.resolved(items_request(opening, *named, **fields)).messages == (
        items_request(opening, *whole, **fields).messages
    )


def test_calls_without_ids_belong_to_the_turn_whose_reasoning_and_text_are_references() -> None:
    """As the AI SDK 6 sends a turn that called tools."""
    kept = StoredCalls()
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), WHOLE)
    calls = [item for item in ITEMS.values() if item["type"] == "function_call"]
    opening, result = (
        {"role": "user", "content": "hi"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    )
    request = items_request(opening, reference(f"rs_{HEXED}"), reference(f"msg_{HEXED}"), *calls, result)
    assert kept.resolved(request).messages == [user("hi"), WHOLE, Message("tool", "ok", tool_call_id="c1")]


def test_a_text_behind_a_reference_to_a_text_is_another_turn() -> None:
    kept = StoredCalls()
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), said("Hi."))
    added = {"role": "assistant", "content": "I'm the client."}
    request = items_request({"role": "user", "content": "hi"}, reference(f"msg_{HEXED}"), added)
    assert kept.resolved(request).messages == [user("hi"), said("Hi."), said("I'm the client.")]


@pytest.mark.parametrize("item_id", ["msg_1", "rs_" + "2" * 32, f"fc_{HEXED}_2", "m" * 500])
def test_an_item_that_is_not_stored_is_named_with_the_way_out(item_id: str) -> None:
    kept = StoredCalls()
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), WHOLE)
    with pytest.raises(RefusalError, match="send the item itself") as refused:
        kept.resolved(items_request({"role": "user", "content": "hi"}, reference(item_id)))
    assert (refused.value.refusal, refused.value.field) == (Refusal.INVALID, "input[1].id")
    assert f"Item with id '{item_id[:200]}' not found." in refused.value.message


@pytest.mark.parametrize("again", [f"msg_{HEXED}", f"rs_{HEXED}", f"fc_{HEXED}_1", f"ctc_{HEXED}_1", f"fc_{HEXED}_01"])
def test_an_item_that_is_named_twice_is_refused_so_a_short_request_does_not_become_a_long_one(again: str) -> None:
    kept = StoredCalls()
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), WHOLE)
    items = [{"role": "user", "content": "hi"}, *map(reference, [*ITEMS, again])]
    with pytest.raises(RefusalError, match="Duplicate item found with id") as refused:
        kept.resolved(items_request(*items))
    assert (refused.value.refusal, refused.value.field) == (Refusal.INVALID, "input[5].id")


def test_references_to_an_answer_of_many_calls_are_resolved_fast() -> None:
    kept = StoredCalls()
    many = [ToolCall(f"c{at}", FunctionCall("f", "{}")) for at in range(5_000)]
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), Message("assistant", tool_calls=many))
    request = items_request({"role": "user", "content": "hi"}, *(reference(f"fc_{HEXED}_{at}") for at in range(5_000)))
    began = time.process_time()
    assert kept.resolved(request).messages[1].tool_calls == many
    assert time.process_time() - began < 1


def test_reasoning_that_was_never_said_is_no_item() -> None:
    kept = StoredCalls()
    keep(kept, f"resp_{HEXED}", ChatRequest([user("hi")], store=True), said("Hi."))
    with pytest.raises(RefusalError, match="not found"):
        kept.resolved(items_request({"role": "user", "content": "hi"}, reference(f"rs_{HEXED}")))


# --- through a proxy, with the official client


@asynccontextmanager
async def at(proxy: Proxy, key: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=proxy.url + "/v1", api_key=key, max_retries=0) as client:
        yield client


async def test_a_continued_conversation_is_one_trace(
    client: AsyncOpenAI, bench: Bench, scripted: ScriptedEngine
) -> None:
    first = await client.responses.create(model="m", input="work", tools=[BASH])
    [tool] = (item for item in first.output if item.type == "function_call")
    result: Any = {"type": "function_call_output", "call_id": tool.call_id, "output": "a.py"}
    second = await client.responses.create(model="m", input=[result], previous_response_id=first.id, tools=[BASH])
    third = await client.responses.create(model="m", input="more", previous_response_id=second.id, tools=[BASH])
    assert (second.output_text, third.output_text) == ("One.", "Two.")
    assert third.previous_response_id == second.id

    one, two, three = scripted.record.calls("t.0")
    assert two.prompt_token_ids[: len(one.prompt_token_ids + one.token_ids)] == one.prompt_token_ids + one.token_ids
    assert three.prompt_token_ids[: len(two.prompt_token_ids + two.token_ids)] == two.prompt_token_ids + two.token_ids
    calls = await bench.calls(3)
    assert [call.prompt.base for call in calls] == [None, first.id, second.id]
    assert [call.messages.shared for call in calls] == [0, 2, 4]
    assert [call.stored_from for call in calls] == [0, 0, 0]


async def test_instructions_are_each_requests_own(client: AsyncOpenAI, bench: Bench) -> None:
    first = await client.responses.create(model="m", input="hi", instructions="Be brief.")
    second = await client.responses.create(model="m", input="ho", previous_response_id=first.id)
    await client.responses.create(model="m", input="hu", instructions="Be long.", previous_response_id=second.id)
    calls = await bench.calls(3)
    roles = [[message["role"] for message in msgspec.json.decode(call.messages.rest)] for call in calls]
    assert roles == [
        ["system", "user"],
        ["user", "assistant", "user"],
        ["system", "user", "assistant", "user", "assistant", "user"],
    ]
    assert [call.stored_from for call in calls] == [1, 0, 1]


@pytest.mark.parametrize("why", ["unknown", "not stored", "another session's"])
async def test_what_cant_be_continued_is_openais_error(
    client: AsyncOpenAI, bench: Bench, proxy: Proxy, why: str
) -> None:
    async with at(proxy, bench.key("t.1", "c2")) as other:
        asked = other if why == "another session's" else client
        first = await asked.responses.create(model="m", input="hi", store=why != "not stored")
    named = "resp_0" if why == "unknown" else first.id
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="m", input="ho", previous_response_id=named)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.param == "previous_response_id"
    assert f"'{named}'" in refused.value.message


async def test_a_conversation_by_references_is_one_trace_also_where_another_proxy_takes_over(
    bench: Bench, engine_url: str, scripted: ScriptedEngine
) -> None:
    """By the AI SDK's default, which relies on OpenAI's store."""
    lies: dict[str, Any] = await bench.open()
    key = bench.key(issued_at=int(time.time()) - 60, **lies)
    history: list[Any] = [{"role": "user", "content": "work"}]
    for _ in range(2):
        async with proxied(bench, engine_url) as proxy, at(proxy, key) as client:
            answer = await client.responses.create(model="m", input=history, tools=[BASH])
            history += [reference(item.id) for item in answer.output if item.id is not None]
            history += [
                {"type": "function_call_output", "call_id": item.call_id, "output": "a.py"}
                for item in answer.output
                if item.type == "function_call"
            ]
            if answer.output_text == "One.":
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.create(model="m", input=[*history, reference("msg_1")], tools=[BASH])
                assert (refused.value.type, refused.value.param) == (
                    "invalid_request_error",
                    f"input[{len(history)}].id",
                )
    assert [turn.get("type") for turn in history] == [
        *(None, "item_reference", "item_reference", "function_call_output", "item_reference")
    ]
    one, two = scripted.record.calls("t.0")
    assert two.prompt_token_ids[: len(one.prompt_token_ids + one.token_ids)] == one.prompt_token_ids + one.token_ids


async def test_another_owner_continues_what_the_first_has_stored(
    bench: Bench, engine_url: str, scripted: ScriptedEngine
) -> None:
    lies: dict[str, Any] = await bench.open()
    key = bench.key(issued_at=int(time.time()) - 60, **lies)
    previous: str | None = None
    for text in ("hi", "ho", "hu"):
        async with proxied(bench, engine_url) as proxy, at(proxy, key) as client:
            answer = await client.responses.create(
                model="m", input=text, instructions="Be brief.", previous_response_id=previous
            )
            previous = answer.id
    books = scripted.record.calls("t.0")
    seen = [book.prompt_token_ids + book.token_ids for book in books]
    assert [book.prompt_token_ids[: len(last)] for last, book in zip(seen, books[1:], strict=False)] == seen[:2]
    await bench.write(Build("t.0", "t", 0, 1, 1, "c1", Status.COMPLETED, "prefix_merging", b"{}", "shell"))
    async with proxied(bench, engine_url) as proxy, at(proxy, key) as client:
        with pytest.raises(openai.ConflictError):
            await client.responses.create(model="m", input="?", previous_response_id=previous)
