"""Anthropic Messages in and out of the canonical form; the official client's own types judge what leaves, and name what may come."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from anthropic.types import ErrorResponse, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from anthropic.types import Message as AnthropicMessage
from anthropic.types.beta import BetaContentBlockParam, BetaToolUnionParam
from anthropic.types.beta.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from proxy.chat import (
    Answer,
    ChatRequest,
    ForcedTool,
    FunctionCall,
    Message,
    NamedFunction,
    TextPart,
    ToolCall,
    Usage,
)
from proxy.dialects import signature
from proxy.dialects.anthropic_messages import TYPES, AnthropicMessages
from proxy.dialects.base import Serves, Wire
from proxy.errors import Refusal, RefusalError
from tests.proxy.dialects.sse import events_of
from tests.proxy.dialects.suite import (
    DEEP,
    DialectSuite,
    answer_of,
    answers_with,
    calls_with,
    comparable,
    object_texts,
    texts,
)
from topics.types.completion import Sampling

DIALECT = AnthropicMessages()
USER = {"role": "user", "content": "hi"}
SMALLEST: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [USER]}
TOOL = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
CACHED = {"cache_control": {"type": "ephemeral"}}
SEARCH = {"name": "web_search", "type": "web_search_20250305", "max_uses": 8}


def parse(**fields: Any) -> ChatRequest:
    return TestAnthropicMessages.parse(**fields)


def messages(*told: dict[str, Any], **fields: Any) -> list[Message]:
    return parse(messages=list(told), **fields).messages


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def result(content: Any = None, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", **({} if content is None else {"content": content}), **more}


def use(parsed: Any, name: str = "f", at: str = "t1") -> dict[str, Any]:
    return {"type": "tool_use", "id": at, "name": name, "input": parsed}


def thinking(thought: str, sealed: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thought, "signature": sealed}


# --- messages


@pytest.mark.parametrize("form", ["said", [text("said")], [text("said", **CACHED)], [text(""), text("said")]])
@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool", "top"])
def test_a_lone_text_has_one_form(role: str, form: Any) -> None:
    if role == "top":
        assert messages(USER, system=form)[0] == Message("system", "said")
    elif role == "tool":
        assert messages(user(result(form))) == [Message("tool", "said", tool_call_id="t1")]
    else:
        assert messages({"role": role, "content": form}, USER)[0].content == "said"


# --- tools


def definition(name: str) -> str:
    return (
        f'<function>{{"name":"{name}","description":"does","parameters":{json.dumps(TOOL["input_schema"])}}}</function>'
    )


def offered(request: ChatRequest) -> list[str]:
    return [tool.function.name for tool in request.tools]


def test_tools_of_all_kinds_are_offered_or_hosted() -> None:
    custom = TOOL | {
        "name": "g",
        "type": "custom",
        "strict": True,
        "input_examples": [{}],
        "eager_input_streaming": True,
    }
    own = {"name": "h", "type": "bash_20250124", "input_schema": {"type": "object"}}
    request = parse(tools=[TOOL, custom, own, SEARCH, {"type": "mcp_toolset", "mcp_server_name": "s"}])
    assert offered(request) == ["f", "g", "h"]
    assert request.tools[1].function.strict is True
    assert request.hosted_tools == ["web_search_20250305", "mcp_toolset"]


def test_a_deferred_tool_is_told_where_it_is_referred_to_and_the_tools_stay() -> None:
    late = [TOOL | {"name": name, "description": "does", "defer_loading": True} for name in ("g", "h")]
    asked = [USER, assistant(use({"query": "g"}, "ToolSearch"))]
    found = user(result([{"type": "tool_reference", "tool_name": "g"}]), text("Tool loaded."))
    before = parse(messages=[USER], tools=[TOOL, late[0]])
    after = parse(messages=[*asked, found], tools=[TOOL, *late])
    assert offered(before) == offered(after) == ["f"]
    assert after.messages[2:] == [Message("tool", definition("g"), tool_call_id="t1"), Message("user", "Tool loaded.")]


def test_tools_that_are_added_and_removed_are_told_in_place() -> None:
    changes = [
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL | {"name": "g"}}},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
    ]
    request = parse(
        messages=[USER, {"role": "system", "content": changes}],
        tools=[TOOL, TOOL | {"name": "late", "defer_loading": True}],
    )
    assert request.messages[1].content == [
        TextPart(definition("g")),
        TextPart(definition("late")),
        TextPart("The tool f is available."),
        TextPart("The tool f is no longer available."),
    ]


@pytest.mark.parametrize(
    "more", [[], [{"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}, TOOL]]
)
def test_tools_that_nothing_here_could_load_are_not_deferred(more: list[dict[str, Any]]) -> None:
    assert "g" in offered(parse(tools=[TOOL | {"name": "g", "defer_loading": True}, *more]))


def test_parallel_tool_use_is_only_ever_switched_off() -> None:
    assert parse(tools=[TOOL], tool_choice={"type": "auto"}).parallel_tool_calls is None
    assert (
        parse(tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}).parallel_tool_calls is False
    )


# --- parameters

HONOURED = {
    "max_tokens",
    "messages",
    "model",
    "output_config",
    "stop_sequences",
    "system",
    "thinking",
    "tool_choice",
    "tools",
}
IGNORED: dict[str, Any] = {
    "betas": ["b"],
    "billing_policy": {"type": "billing_policy", "bill_to": "self"},
    "cache_control": {"type": "ephemeral"},
    "container": {"id": "c"},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "diagnostics": {"previous_message_id": "m"},
    "fallback_credit_token": "t",
    "fallbacks": "default",
    "inference_geo": "eu",
    "mcp_servers": [{"type": "url", "name": "n", "url": "u"}],
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "speed": "fast",
    "user_profile_id": "u",
    "workspace_id": "w",
    "of the future": [{}],
}
REFUSED: dict[str, Any] = {"compaction": {"type": "summarize"}, "thread": {"type": "create"}}


def test_every_field_of_the_public_schema_has_its_rule() -> None:
    fields = set(MessageCreateParamsBase.__annotations__) | set(MessageCountTokensParams.__annotations__)
    assert fields == HONOURED | (set(IGNORED) - {"of the future"}) | set(REFUSED)


@pytest.mark.parametrize("field", IGNORED)
def test_what_changes_no_answer_is_ignored(field: str) -> None:
    assert comparable(parse(**{field: IGNORED[field]})) == comparable(parse())


def test_sampling_is_read() -> None:
    request = parse(temperature=0.3, top_p=0.9, top_k=5, max_tokens=7, stop_sequences=["x"], stream=True)
    assert request.sampling == Sampling(temperature=0.3, top_p=0.9, top_k=5, max_tokens=7)
    assert (request.stop, request.stream, request.stream_usage) == (["x"], True, True)


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_a_format_is_openais_structured_output(place: str) -> None:
    schema = {"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string"}}}}
    request = parse(**{place: schema if place == "output_format" else {"format": schema}})
    assert request.grammar_source == "response_format"
    assert json.loads(bytes(request.response_format)) == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema["schema"], "strict": True},
    }


@pytest.mark.parametrize("limit", [{}, {"max_tokens": None}, {"max_tokens": 9}])
def test_a_request_to_count_tokens_may_end_with_the_assistant_and_a_call_may_not(limit: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "messages": [USER, assistant(text("x"))], **limit}).encode()
    assert DIALECT.parse(Wire(body, serves=Serves.COUNT)).messages[-1] == Message("assistant", "x")
    with pytest.raises(RefusalError, match="prefill") as refused:
        DIALECT.parse(Wire(body))
    assert (refused.value.refusal, refused.value.field) == (Refusal.INVALID, "messages")


def test_a_count_is_told_in_anthropics_form() -> None:
    assert MessageTokensCount.model_validate_json(DIALECT.count(17)).input_tokens == 17


# --- what is refused

KINDS = {
    "carried": {
        "text",
        "image",
        "document",
        "search_result",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "compaction",
        "tool_addition",
        "tool_removal",
    },
    "left out": {
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "advisor_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "mcp_tool_listing",
        "fallback",
    },
    "refused": {"container_upload"},
}


def types_of(union: Any) -> Iterator[str]:
    """What `type` may be in the typed dicts of a union, however it is nested."""
    if is_typeddict(union):
        yield from types_of(get_type_hints(union)["type"])
    elif isinstance(union, str):
        yield union
    else:
        for member in get_args(union):
            yield from types_of(member)


def test_every_content_block_of_the_public_schema_has_its_rule() -> None:
    assert set(types_of(BetaContentBlockParam)) == {kind for told in KINDS.values() for kind in told}
    for kind in KINDS["left out"]:
        assert messages(USER, assistant({"type": kind}, text("x")), USER)[1] == Message("assistant", "x")
    for kind in KINDS["refused"]:
        with pytest.raises(RefusalError):
            messages(user({"type": kind, "file_id": "f"}))


def test_every_tool_of_the_public_schema_is_offered_hosted_or_refused() -> None:
    for kind in set(types_of(BetaToolUnionParam)):
        if re.match(r"(bash|text_editor|computer|memory|browser)_", kind):
            with pytest.raises(RefusalError, match=kind):
                parse(tools=[{"type": kind, "name": "n"}])
        elif kind == "custom":
            assert offered(parse(tools=[TOOL | {"type": kind}])) == ["f"]
        else:
            assert parse(tools=[{"type": kind, "name": "n"}]).hosted_tools == [kind]


class TestAnthropicMessages(DialectSuite):
    dialect = DIALECT
    smallest = SMALLEST
    stops = "stop_sequences"
    refused = (
        ({"messages": []}, "messages"),
        ({"messages": [], "system": "S"}, "messages"),
        ({"messages": [{"role": "system", "output_config": {}}]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [USER, assistant(text("{"))]}, "messages"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "hologram"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user(use({}))]}, "messages[0].content[0].type"),
        (
            {"messages": [user({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [user({"type": "document", "source": {"type": "file", "file_id": "f"}})]},
            "messages[0].content[0].source",
        ),
        ({"messages": [user(result([{"type": "tool_reference"}]))]}, "messages[0].content[0].content[0].type"),
        ({"messages": [USER, assistant({"type": "tool_use", "name": "f"}), USER]}, "messages[1].content[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"top_k": 2**63}, "top_k"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "bash", "type": "bash_20250124"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema"}}, "output_format"),
        *(({name: value}, name) for name, value in REFUSED.items()),
    )
    raw_fields = (
        b'"tools":[{"name":"f","input_schema":%b}]',
        b'"metadata":%b',
        b'"cache_control":{"x":%b}',
    )
    nullable = (
        *("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences", "compaction", "thread"),
    )
    efforts = (
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "between_tools"}}, None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "none"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8192}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32000}, "output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "medium"}}, "medium"),
        ({"output_config": {"effort": "max"}}, "high"),
        ({"output_config": {"effort": "utmost"}}, None),
        (
            {
                "output_config": {"effort": "high"},
                "messages": [USER, {"role": "system", "content": [], "output_config": {"effort": "low"}}, USER],
            },
            "low",
        ),
    )
    tool_choices = (
        ({"tools": [TOOL], "tool_choice": {"type": "auto"}}, "auto", ["f"]),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "required", ["f"]),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "none", ["f"]),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, ForcedTool(NamedFunction("f")), ["f"]),
        ({"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "auto", ["f"]),
        ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, None, []),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, None, []),
    )
    overflows = (
        ((212345, 200000), '"prompt is too long: 212345 tokens > 200000 maximum"'),
        (None, "prompt is too long: "),
    )


@pytest.mark.parametrize("parsed", ['{"a":1}', "1" * 4000, "[" * 500 + "]" * 500])
def test_an_input_that_is_large_or_deep_is_read(parsed: str) -> None:
    [message] = DIALECT.parse(Wire(with_input(parsed), serves=Serves.COUNT)).messages
    assert message.tool_calls[0].function.arguments == parsed


@pytest.mark.parametrize("parsed", ["1e999", "1" * 5000, DEEP.decode()], ids=lambda parsed: parsed[:9])
def test_an_input_that_no_log_could_hold_is_refused(parsed: str) -> None:
    with pytest.raises(RefusalError) as error:
        DIALECT.parse(Wire(with_input(parsed), serves=Serves.COUNT))
    assert error.value.refusal is Refusal.INVALID


def with_input(parsed: str) -> bytes:
    turn = '{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":' + parsed + "}]}"
    return f'{{"messages":[{turn}]}}'.encode()


def test_blocks_without_end_are_refused() -> None:
    value = '{"type":"x","content":[' * 50_000 + "]}" * 50_000
    with pytest.raises(RefusalError) as error:
        TestAnthropicMessages.with_field(b'"system":%b', value.encode())
    assert error.value.refusal is Refusal.INVALID


# --- answers

answers = answers_with(calls_with(object_texts | texts))
requests = st.builds(
    lambda display: parse(thinking={"type": "adaptive", "display": display}),
    st.sampled_from([None, "omitted", "summarized"]),
)
streamed_events: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def streamed(request: ChatRequest, answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, each checked by the official client's type and named on its `event:` line."""
    found = []
    for name, data in events_of(DIALECT.stream("msg_1", 17, request, [answer])):
        payload = json.loads(data)
        assert name == payload["type"]
        streamed_events.validate_python(payload)
        found.append(payload)
    return found


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of a stream, as Claude Code puts it together; fails where events are out of order."""
    first, *others, delta, last = events
    assert (first["type"], delta["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    opened: dict[str, Any] | None = None
    for event in others:
        assert event["index"] == len(message["content"]) - (opened is not None)
        match event["type"]:
            case "content_block_start":
                assert opened is None
                opened = event["content_block"] | {"partial_json": ""}
                message["content"].append(opened)
            case "content_block_delta":
                assert opened is not None
                name = {"input_json_delta": "partial_json"}.get(event["delta"]["type"], event["delta"]["type"][:-6])
                opened[name] += event["delta"][name]
            case "content_block_stop":
                assert opened is not None
                raw = opened.pop("partial_json")
                if opened["type"] == "tool_use":
                    opened["input"] = as_claude_code_parses(raw)
                opened = None
    assert opened is None
    assert message["usage"]["input_tokens"] == delta["usage"]["input_tokens"]
    message.update(delta["delta"], usage=delta["usage"])
    return message


def as_claude_code_parses(raw: str) -> Any:
    with suppress(msgspec.DecodeError):
        parsed = msgspec.json.decode(raw or "{}")
        if isinstance(parsed, dict):
            return parsed
    return {"__unparsedToolInput": {"raw": raw, "len": len(raw)}}


@given(requests, answers)
def test_body_and_stream_of_one_answer_say_the_same(request: ChatRequest, answer: Answer) -> None:
    body = DIALECT.body("msg_1", 17, request, [answer])
    assert AnthropicMessage.model_validate_json(body).role == "assistant"
    assert assembled(streamed(request, answer)) == json.loads(body)


@given(requests, answers)
def test_an_answer_that_is_sent_back_is_the_message_that_was_sampled(request: ChatRequest, answer: Answer) -> None:
    body = json.loads(DIALECT.body("msg_1", 17, request, [answer]))
    [_, echoed, _] = messages(USER, assistant(*body["content"]), USER)
    sampled = answer.message
    assert (echoed.content or "", echoed.reasoning or "") == (sampled.content or "", sampled.reasoning or "")
    assert [(call.id, call.function.name) for call in echoed.tool_calls] == [
        (call.id, call.function.name) for call in sampled.tool_calls
    ]
    for was, now in zip(sampled.tool_calls, echoed.tool_calls, strict=True):
        assert now.function.arguments == was.function.arguments or same_json(was, now)


def test_a_body_holds_arguments_as_they_were_sampled() -> None:
    spelt = '{"n" : 1.0,\t"e":"\\u00e9"}'
    message = Message("assistant", None, tool_calls=[ToolCall("c", FunctionCall("f", spelt))])
    body = DIALECT.body("msg_1", 1, parse(), [answer_of(message, "tool_calls")])
    assert b'"input":' + spelt.encode() in body


def same_json(one: ToolCall, other: ToolCall) -> bool:
    first, second = (json.loads(call.function.arguments or "{}") for call in (one, other))
    return bool(first == second)


@pytest.mark.parametrize(
    ("finish_reason", "calls", "sequence", "stop_reason"),
    [
        ("stop", 0, None, "end_turn"),
        ("stop", 0, "###", "stop_sequence"),
        ("stop", 1, None, "tool_use"),
        ("tool_calls", 2, None, "tool_use"),
        ("length", 1, None, "max_tokens"),
        ("content_filter", 0, None, "refusal"),
    ],
)
def test_stop_reasons(finish_reason: Any, calls: int, sequence: str | None, stop_reason: str) -> None:
    message = Message("assistant", "x", tool_calls=[ToolCall("c", FunctionCall("f", "{}"))] * calls)
    answer = answer_of(message, finish_reason, stop_sequence=sequence)
    body = json.loads(DIALECT.body("msg_1", 1, parse(), [answer]))
    assert (body["stop_reason"], body["stop_sequence"]) == (stop_reason, sequence)


def test_usage_tells_cached_tokens_apart() -> None:
    body = json.loads(
        DIALECT.body("msg_1", 1, parse(), [answer_of(Message("assistant", "x"), usage=Usage(10, 5, 4, 3))])
    )
    assert body["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 3},
    }


def test_thinking_that_is_not_shown_is_still_signed() -> None:
    thought = answer_of(Message("assistant", None, reasoning="why"))
    for display, shown in ((None, "why"), ("summarized", "why"), ("omitted", "")):
        request = parse(thinking={"type": "adaptive", "display": display})
        [block] = json.loads(DIALECT.body("msg_1", 1, request, [thought]))["content"]
        assert block == {"type": "thinking", "thinking": shown, "signature": signature.seal("why")}


def test_the_models_are_a_page_or_one() -> None:
    page = json.loads(DIALECT.models({"a": 8192, "b": None}, None))
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "a", "b")
    models = [ModelInfo.model_validate(model) for model in page["data"]]
    assert [(model.id, model.max_input_tokens) for model in models] == [("a", 8192), ("b", None)]
    assert ModelInfo.model_validate_json(DIALECT.models({"b": None}, "b")).id == "b"


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_has_anthropics_shape_as_body_and_as_event(refusal: Refusal) -> None:
    refused = RefusalError(refusal, "why", field="f")
    told = json.loads(DIALECT.error(refused))
    assert told["type"] == "error"
    assert told["error"]["type"] == TYPES[refusal]
    with suppress(KeyError):
        assert ErrorResponse.model_validate(told | {"error": told["error"] | {"type": KNOWN[refusal]}})
    name, data, *_ = DIALECT.error_event(refused).decode().split("\n")
    assert (name, json.loads(data.removeprefix("data: "))) == ("event: error", told)


KNOWN = {refusal: kind for refusal, kind in TYPES.items() if kind not in ("conflict_error", "request_too_large")}
