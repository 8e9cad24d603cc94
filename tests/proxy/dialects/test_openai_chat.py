"""OpenAI Chat Completions in and out of the canonical form; the official client's own models judge what leaves."""

from __future__ import annotations

import json
from typing import Any

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
    Message,
    NamedFunction,
    ToolCall,
    Usage,
)
from proxy.dialects.openai_chat import SHAPES, OpenAIChat
from proxy.errors import Refusal, RefusalError
from tests.proxy.dialects.sse import events_of, payloads_of
from tests.proxy.dialects.suite import DialectSuite, answer_of, answers_with, calls_with, texts
from topics.types.completion import Sampling

DIALECT = OpenAIChat()
USER = {"role": "user", "content": "hi"}
SMALLEST: dict[str, Any] = {"model": "m", "messages": [USER]}
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
    return TestOpenAIChat.parse(**fields)


FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in "fg"]
TOOLS: list[Any] = [*FUNCTIONS, CUSTOM]
ALL = ["f", "g", "patch"]


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


class TestOpenAIChat(DialectSuite):
    dialect = DIALECT
    smallest = SMALLEST
    stops = "stop"
    refused = (
        ({"n": 200}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "a,b"}}]}
                ]
            },
            "messages[0].content[0].input_audio.format",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [CUSTOM], "tool_choice": chosen("function", "g")}, "tool_choice"),
        ({"tools": [CUSTOM], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"n": 0}, "n"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "x"}]}]}, "messages[0].tool_calls[0]"),
        *(
            ({name: value}, name)
            for name in ("seed", "top_k", "max_tokens", "max_completion_tokens")
            for value in (2**63, -(2**63) - 1, 10**30)
        ),
    )
    raw_fields = (
        b'"tools":[{"function":{"name":"f","parameters":%b}}]',
        b'"metadata":%b',
        b'"response_format":{"type":"json_schema","json_schema":%b}',
    )
    nullable = (
        *("tools", "tool_choice", "stop", "n", "stream", "stream_options", "response_format", "functions"),
        *("function_call", "modalities", "audio", "reasoning_effort"),
    )
    efforts = (
        *(({"reasoning_effort": name}, name) for name in ("none", "low", "medium", "high")),
        *(
            ({"reasoning_effort": name}, effort)
            for name, effort in (("minimal", "low"), ("xhigh", "high"), ("max", "high"))
        ),
        *(({"reasoning_effort": name}, None) for name in ("auto", None)),
    )
    tool_choices = (
        ({"tools": TOOLS, "tool_choice": None}, None, ALL),
        ({"tool_choice": "required"}, None, []),
        ({"tools": TOOLS, "tool_choice": "required"}, "required", ALL),
        ({"tools": TOOLS, "tool_choice": chosen("function", "g")}, ForcedTool(NamedFunction("g")), ALL),
        ({"tools": TOOLS, "tool_choice": chosen("custom", "patch")}, ForcedTool(NamedFunction("patch")), ALL),
        ({"tools": TOOLS, "tool_choice": allowed("required", chosen("custom", "patch"))}, "required", ["patch"]),
        ({"tools": TOOLS, "tool_choice": allowed("auto", chosen("function", "f"))}, "auto", ["f"]),
    )
    overflows = ((None, "context_length_exceeded"),)


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
    answer = answer_of(Message("assistant", tool_calls=[call]), "tool_calls")
    told: list[dict[str, Any]] = json.loads(DIALECT.body("c", 1, request, [answer]))["choices"][0]["message"][
        "tool_calls"
    ]
    deltas = [one["choices"][0]["delta"] for one in payloads_of(DIALECT.stream("c", 1, request, [answer]))]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert {key: pieces[0][key] for key in ("id", "type")} == {key: told[0][key] for key in ("id", "type")}
    assert "".join(piece["custom"]["input"] for piece in pieces) == told[0]["custom"]["input"]
    return told


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


@given(st.lists(answers_with(calls_with(texts)), min_size=1, max_size=3), st.booleans())
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
    answers = [answer_of(Message("assistant", "x"), usage=Usage(10, sampled, 4, 2)) for sampled in (3, 5)]
    assert json.loads(DIALECT.body("c", 1, request, answers))["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_no_training_field_leaves() -> None:
    request = ChatRequest([Message("user", "x")])
    told = json.loads(DIALECT.body("chatcmpl-1", 1, request, [answer_of(Message("assistant", "x"))]))
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
