"""OpenAI Chat Completions in and out of the canonical form; the official client's own models judge what leaves."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion_chunk import ChoiceDelta

from proxy.chat import (
    Answer,
    ChatRequest,
    ForcedTool,
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    NamedFunction,
    TextPart,
    ToolCall,
    Usage,
)
from proxy.dialects.base import Wire
from proxy.dialects.openai_chat import SHAPES, OpenAIChat
from proxy.errors import Refusal, RefusalError
from tests.proxy.dialects.sse import events_of
from topics.types.completion import Sampling

DIALECT = OpenAIChat()
USER = {"role": "user", "content": "hi"}
CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Patches.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}},
    },
}


def chosen(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


def parse(**fields: Any) -> ChatRequest:
    return DIALECT.parse(Wire(json.dumps({"model": "m", "messages": [USER], **fields}).encode()))


def test_a_developer_message_in_the_middle_stays_where_it_is() -> None:
    roles = ["system", "user", "developer", "user"]
    request = parse(messages=[{"role": role, "content": role} for role in roles])
    assert [message.role for message in request.messages] == roles
    assert [message.content for message in request.messages] == roles


def test_content_part_lists_stay_lists() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert parse(messages=[{"role": "user", "content": parts}]).messages[0].content == [TextPart("a"), TextPart("b")]


def test_tool_arguments_are_kept_as_the_very_string() -> None:
    spelt = '{"a" : 1.50,\t"b":"\\u00e9", broken'
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": spelt}}
    assistant = {"role": "assistant", "tool_calls": [call], "provider_specific_fields": {"x": 1}}
    messages = parse(messages=[USER, assistant, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]).messages
    assert messages[1] == Message("assistant", tool_calls=[ToolCall("c1", FunctionCall("f", spelt))])


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_both_spellings_of_reasoning_are_one(field: str) -> None:
    assert parse(messages=[{"role": "assistant", field: " so "}]).messages[0].reasoning == " so "


def test_a_tools_schema_keeps_its_bytes() -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"parameters":{"z": 1,"a":2.0},"name":"f"}}]}'
    tool = DIALECT.parse(Wire(body)).tools[0]
    assert bytes(tool.function.parameters) == b'{"z": 1,"a":2.0}'


def test_a_turn_that_codex_parts_in_two_is_one_again() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    text = {"role": "assistant", "content": "I look."}
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    whole = {**calls, "content": "I look."}
    assert parse(messages=[USER, calls, text, result]) == parse(messages=[USER, whole, result])
    assert len(parse(messages=[USER, text, calls, result]).messages) == 4
    assert len(parse(messages=[USER, text, text]).messages) == 3
    thought = {**text, "reasoning_content": "Hm."}  # Codex repeats none: this is a turn of its own
    assert parse(messages=[USER, calls, thought]).messages[-1] == Message("assistant", "I look.", "Hm.")


@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        *((name, name) for name in ("none", "low", "medium", "high")),
        *[("minimal", "low"), ("xhigh", "high"), ("max", "high"), ("auto", None), (None, None)],
    ],
)
def test_a_reasoning_effort_is_the_nearest_of_ours(asked: str | None, effort: str | None) -> None:
    assert parse(reasoning_effort=asked).reasoning_effort == effort


FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in "fg"]


@pytest.mark.parametrize(
    ("asked", "choice", "shown"),
    [
        (None, None, ["f", "g", "patch"]),
        ("required", "required", ["f", "g", "patch"]),
        (chosen("function", "g"), ForcedTool(NamedFunction("g")), ["f", "g", "patch"]),
        (chosen("custom", "patch"), ForcedTool(NamedFunction("patch")), ["f", "g", "patch"]),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [chosen("custom", "patch")]}},
            "required",
            ["patch"],
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [chosen("function", "f")]}},
            "auto",
            ["f"],
        ),
    ],
)
def test_a_tool_choice_is_read_in_all_its_forms(asked: Any, choice: Any, shown: list[str]) -> None:
    told = parse(tools=[*FUNCTIONS, CUSTOM], tool_choice=asked)
    assert (told.tool_choice, [tool.function.name for tool in told.tools]) == (choice, shown)
    assert parse(tool_choice=asked if isinstance(asked, str) else None).tool_choice is None


def test_a_custom_tool_is_a_function_that_takes_text() -> None:
    [tool] = parse(tools=[CUSTOM]).tools
    assert tool.function.description == "Patches.\n\n`input` must match this lark grammar:\nstart: /x/"
    assert json.loads(bytes(tool.function.parameters))["required"] == ["input"]
    [plain] = parse(tools=[{"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}}]).tools
    assert plain.function.description is None


@given(st.text(max_size=20))
def test_a_custom_tools_call_leaves_and_comes_back_as_one(given: str) -> None:
    sampled = json.dumps({"input": given}, ensure_ascii=False, separators=(",", ":"))
    call = ToolCall("c1", FunctionCall("patch", sampled))
    [told] = told_calls(call)
    assert told == {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": given}}
    [echoed] = parse(messages=[USER, {"role": "assistant", "tool_calls": [told]}]).messages[1].tool_calls
    assert json.loads(echoed.function.arguments) == {"input": given}


@pytest.mark.parametrize("arguments", ["*** Begin", '{"input": 1}', '{"input":"a","b":1}', ""])
def test_arguments_that_hold_no_input_are_the_input(arguments: str) -> None:
    [told] = told_calls(ToolCall("c1", FunctionCall("patch", arguments)))
    assert told["custom"]["input"] == arguments


def told_calls(call: ToolCall) -> list[dict[str, Any]]:
    """As the body tells them; the stream says the same."""
    request = parse(tools=[CUSTOM])
    answer = Answer(Message("assistant", tool_calls=[call]), "tool_calls", Usage(1, 1), b"", b"", b"", "m")
    told: list[dict[str, Any]] = json.loads(DIALECT.body("c", 1, request, [answer]))["choices"][0]["message"][
        "tool_calls"
    ]
    events = DIALECT.stream("c", 1, request, [answer]).decode().split("\n\n")[:-2]
    deltas = [json.loads(one.removeprefix("data: "))["choices"][0]["delta"] for one in events]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert {key: pieces[0][key] for key in ("id", "type")} == {key: told[0][key] for key in ("id", "type")}
    assert "".join(piece["custom"]["input"] for piece in pieces) == told[0]["custom"]["input"]
    return told


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ({"filename": "a.txt", "file_data": "data:text/plain;base64,aMOp"}, TextPart("a.txt\nh\u00e9")),
        ({"filename": "a.txt", "file_data": "data:text/plain;base64,/w=="}, TextPart("[a.txt: not shown]")),
        ({"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}, TextPart("[a.pdf: not shown]")),
        ({"file_data": "AAAA"}, TextPart("[file: not shown]")),
        ({"file_data": "data:image/png;base64,AAAA"}, ImagePart(ImageUrl("data:image/png;base64,AAAA"))),
    ],
)
def test_files_are_shown_where_they_can_be(file: dict[str, str], part: Any) -> None:
    told = parse(messages=[{"role": "user", "content": [{"type": "file", "file": file}]}])
    assert told.messages[0].content == [part]


def test_sampling_is_read_and_unknown_fields_are_skipped() -> None:
    request = parse(
        temperature=0.3,
        top_p=0.9,
        seed=7,
        max_tokens=5,
        max_completion_tokens=6,
        stop="x",
        frobnicate=[1],
        logprobs=True,
    )
    assert request.sampling == Sampling(temperature=0.3, top_p=0.9, seed=7, max_tokens=6)
    assert request.stop == ["x"]


def test_nulls_are_as_good_as_missing() -> None:
    nulls = dict.fromkeys(
        [
            *("tools", "tool_choice", "stop", "n", "stream", "stream_options", "response_format", "functions"),
            *("function_call", "modalities", "audio", "reasoning_effort"),
        ]
    )
    assert parse(**nulls) == parse()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [USER], "n": 200}, "n"),
        ({"messages": []}, "messages"),
        ({"model": "m"}, None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [USER], "temperature": "hot"}, "temperature"),
        ({"messages": [USER], "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"messages": [USER], "tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom"),
        ({"messages": [USER], "tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"messages": [USER], "tools": [CUSTOM], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"messages": [USER], "tools": [CUSTOM], "tool_choice": chosen("function", "g")}, "tool_choice"),
        ({"messages": [USER], "tools": [CUSTOM], "tool_choice": "any"}, "tool_choice"),
        ({"messages": [USER], "tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
        ({"messages": [USER], "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": [USER], "functions": []}, "functions"),
        ({"messages": [USER], "function_call": "auto"}, "function_call"),
        ({"messages": [USER], "modalities": ["audio"]}, "modalities"),
        ({"messages": [USER], "n": 0}, "n"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "x"}]}]}, "messages[0].tool_calls[0]"),
        *(
            ({"messages": [USER], name: value}, name)
            for name in ("seed", "top_k", "max_tokens", "max_completion_tokens")
            for value in (2**63, -(2**63) - 1, 10**30)
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_with_its_field(body: dict[str, Any], field: str | None) -> None:
    with pytest.raises(RefusalError) as refused:
        DIALECT.parse(Wire(json.dumps(body).encode()))
    assert (refused.value.refusal, refused.value.field) == (Refusal.INVALID, field)
    told = json.loads(DIALECT.error(refused.value))["error"]
    assert (told["type"], told["param"]) == ("invalid_request_error", field)


@given(st.binary(max_size=200) | st.text(max_size=50).map(lambda text: json.dumps({"messages": text}).encode()))
def test_any_other_bytes_are_refused_and_never_raise_otherwise(body: bytes) -> None:
    with pytest.raises(RefusalError):
        DIALECT.parse(Wire(body))


@pytest.mark.parametrize(
    "field",
    [
        b'"metadata":' + b"[" * 100_000 + b"]" * 100_000,
        b'"tools":[{"function":{"name":"f","parameters":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]",
        b'"tools":[{"function":{"name":"f","parameters":{"x":"\xff"}}}]',
        b'"response_format":{"type":"json_schema","json_schema":"\xff"}',
    ],
    ids=["unknown, deep", "schema, deep", "schema, no UTF-8", "format, no UTF-8"],
)
def test_what_no_json_holds_is_refused_in_raw_parts_too(field: bytes) -> None:
    with pytest.raises(RefusalError) as refused:
        DIALECT.parse(Wire(b'{"messages":[{"role":"user","content":"hi"}],' + field + b"}"))
    assert refused.value.refusal is Refusal.INVALID


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known = st.sampled_from(
    ["messages", "tools", "tool_choice", "stop", "n", "stream_options", "response_format", "temperature"]
)


@given(st.dictionaries(known, json_values, max_size=4))
def test_a_well_formed_body_of_wrong_shapes_is_read_or_refused(fields: dict[str, Any]) -> None:
    with suppress(RefusalError):
        parse(**fields)


texts = st.text(max_size=30)
answers = st.builds(
    Answer,
    message=st.builds(
        Message,
        role=st.just("assistant"),
        content=st.none() | texts,
        reasoning=st.none() | texts,
        tool_calls=st.lists(st.builds(ToolCall, texts, st.builds(FunctionCall, texts.filter(bool), texts)), max_size=3),
    ),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
    usage=st.builds(Usage, st.integers(1, 10**6), st.integers(1, 10**6), *[st.none() | st.integers(0, 10**6)] * 2),
    prompt_ids=st.just(b""),
    sampled_ids=st.just(b""),
    logprobs=st.just(b""),
    model=st.just("served"),
)


@given(st.lists(answers, min_size=1, max_size=3), st.booleans())
def test_body_and_stream_of_one_request_say_the_same(answers: list[Answer], with_usage: bool) -> None:
    request = ChatRequest([Message("user", "x")], model="asked", stream_usage=with_usage)
    body = ChatCompletion.model_validate_json(DIALECT.body("chatcmpl-1", 17, request, answers))
    *events, done = events_of(DIALECT.stream("chatcmpl-1", 17, request, answers))
    assert done == (None, "[DONE]")
    chunks = [ChatCompletionChunk.model_validate_json(data) for _, data in events]

    assert {(chunk.id, chunk.created, chunk.model) for chunk in chunks} == {(body.id, body.created, body.model)}
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert usages == ([body.usage] if with_usage else [])
    assert [choice.index for choice in body.choices] == list(range(len(answers)))
    for choice in body.choices:
        streamed = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert joined([one.delta for one in streamed]) == said(choice.message)
        assert streamed[0].delta.role == "assistant"
        assert [one.finish_reason for one in streamed] == [None] * (len(streamed) - 1) + [choice.finish_reason]


def said(message: ChatCompletionMessage) -> tuple[str, str, list[list[str]]]:
    calls = [
        [call.id, call.function.name, call.function.arguments]
        for call in message.tool_calls or []
        if call.type == "function"
    ]
    return message.content or "", (message.model_extra or {}).get("reasoning_content", ""), calls


def joined(deltas: list[ChoiceDelta]) -> tuple[str, str, list[list[str]]]:
    calls: list[list[str]] = []
    for piece in (piece for delta in deltas for piece in delta.tool_calls or []):
        assert piece.function is not None
        if piece.index == len(calls):
            assert piece.type == "function"
            calls.append([piece.id or "", piece.function.name or "", ""])
        calls[piece.index][2] += piece.function.arguments or ""
    reasoning = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    return "".join(delta.content or "" for delta in deltas), reasoning, calls


def test_usage_counts_the_prompt_once_and_tells_cached_and_reasoning_tokens() -> None:
    request = ChatRequest([Message("user", "x")], choices=2)
    answers = [
        Answer(Message("assistant", "x"), "stop", Usage(10, sampled, 4, 2), b"", b"", b"", "m") for sampled in (3, 5)
    ]
    assert json.loads(DIALECT.body("c", 1, request, answers))["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_no_training_field_leaves() -> None:
    answer = Answer(
        Message("assistant", "x"), "stop", Usage(1, 1), b"\1\0\0\0", b"\2\0\0\0", b"\0\0\0\0", "m", policy_version=3
    )
    request = ChatRequest([Message("user", "x")])
    told = msgspec.json.decode(DIALECT.body("chatcmpl-1", 1, request, [answer]))
    assert set(told) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(told["choices"][0]) == {"index", "message", "logprobs", "finish_reason"}
    assert told["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_has_openais_shape_as_body_and_as_event(refusal: Refusal) -> None:
    refused = RefusalError(refusal, "why", field="f")
    kind, code = SHAPES[refusal]
    told = {"error": {"message": "why", "type": kind, "param": "f", "code": code}}
    assert json.loads(DIALECT.error(refused)) == told
    assert json.loads(DIALECT.error_event(refused).removeprefix(b"data: ")) == told
