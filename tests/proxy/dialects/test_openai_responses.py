"""OpenAI Responses in and out of the canonical form; the official client's own models judge what leaves."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseInputItem, ResponseStreamEvent, Tool
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from pydantic import TypeAdapter

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
from proxy.dialects import openai_responses, signature
from proxy.dialects.base import Serves, Wire
from proxy.dialects.openai_responses import FAILURES, OpenAIResponses
from proxy.errors import Refusal, RefusalError
from tests.proxy.dialects.sse import events_of
from tests.proxy.dialects.suite import (
    DEEP,
    DialectSuite,
    answer_of,
    answers_with,
    calls_with,
    indented_objects,
    messages_with,
    texts,
)
from topics.types.completion import Sampling

DIALECT = OpenAIResponses()
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALL_ID = "resp_" + "0123456789abcdef" * 2
USER = {"role": "user", "content": "hi"}
SMALLEST: dict[str, Any] = {"model": "m", "input": [USER]}


def parse(**fields: Any) -> ChatRequest:
    return TestOpenAIResponses.parse(**fields)


def read(*items: Any) -> list[Message]:
    return parse(input=list(items)).messages


def answered(message: Message, finish_reason: Any = "stop") -> Answer:
    return answer_of(message, finish_reason, Usage(10, 5, 4, 2))


def output(request: ChatRequest, answer: Answer) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(DIALECT.body(CALL_ID, 17, request, [answer]))["output"]
    return items


def calls(*named: tuple[str, str]) -> Message:
    return Message("assistant", tool_calls=[ToolCall(f"c{n}", FunctionCall(*call)) for n, call in enumerate(named)])


# --- messages


def test_instructions_are_noted() -> None:
    assert parse(instructions="Be brief.").instructions
    assert not parse().instructions


def test_a_turn_that_is_told_twice_stands_twice() -> None:
    told = output(ASKED, answered(Message("assistant", "a", "r", [ToolCall("c", FunctionCall("f", "{}"))])))
    result = {"type": "function_call_output", "call_id": "c", "output": "o"}
    assert read(*told, result, USER, *told, result, USER) == read(*told, result, USER) * 2


# --- tools

EXEC = {"type": "function", "name": "exec", "parameters": {"z": 1, "a": 2.0}, "strict": False, "description": "Runs."}
PATCH = {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "grammar", "syntax": "lark"}}
PATCH["format"]["definition"] = "start: hunk"  # type: ignore[index] # it's the dictionary above
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": {"type": "object"}}
CLOCK = {"type": "namespace", "name": "clock", "description": "", "tools": [EXEC | {"name": "sleep"}, PATCH]}


def test_every_tool_that_the_harness_runs_is_a_function_to_the_model() -> None:
    built_in = [{"type": "local_shell"}, {"type": "shell"}, {"type": "apply_patch"}]
    hosted = [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}, {"type": "invented_in_2027"}]
    container = {"type": "shell", "environment": {"type": "container_auto"}}
    request = parse(tools=[EXEC, PATCH, SEARCH, CLOCK, *hosted, container, *built_in])
    assert [tool.function.name for tool in request.tools] == [
        "exec",
        "patch",
        "tool_search",
        "clock__sleep",
        "clock__patch",
        "local_shell",
        "shell",
        "apply_patch",
    ]
    assert request.hosted_tools == ["web_search", "mcp", "invented_in_2027", "shell"]
    assert bytes(request.tools[0].function.parameters) == b'{"z": 1, "a": 2.0}'
    assert request.tools[0].function.strict is False
    assert request.tools[1].function.description == "Edits.\n\n`input` must match this lark grammar:\nstart: hunk"
    assert json.loads(bytes(request.tools[1].function.parameters))["required"] == ["input"]


def test_tools_in_the_input_are_tools_before_all_messages_and_text_after() -> None:
    request = parse(
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [CLOCK]},
            USER,
            {"type": "additional_tools", "role": "developer", "tools": [EXEC]},
            {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}},
            {"type": "tool_search_output", "call_id": "c", "tools": [EXEC | {"name": "found"}, CLOCK]},
        ]
    )
    assert [tool.function.name for tool in request.tools] == ["clock__sleep", "clock__patch"]
    _, later, _, found = request.messages
    assert (later.role, "<function>" in str(later.content), '"exec"' in str(later.content)) == ("developer", True, True)
    assert [json.loads(line[10:-11])["name"] for line in str(found.content).splitlines()] == [
        "found",
        "clock__sleep",
        "clock__patch",
    ]
    [item] = output(request, answered(calls(("found", "{}"))))
    assert (item["type"], item["name"]) == ("function_call", "found")


def test_deferred_tools_wait_for_the_harnesss_search_and_only_for_it() -> None:
    deferred = EXEC | {"name": "rare", "defer_loading": True}
    shown = [tool.function.name for tool in parse(tools=[deferred, EXEC, SEARCH]).tools]
    assert shown == ["exec", "tool_search"]
    for others in ([EXEC], [EXEC, {"type": "tool_search"}]):
        assert [tool.function.name for tool in parse(tools=[deferred, *others]).tools] == ["rare", "exec"]


@pytest.mark.parametrize(
    ("fields", "hosted"),
    [
        ({"tools": [{"type": "web_search"}]}, ["web_search"]),
        ({"tools": [{"type": "tool_search"}]}, ["tool_search"]),
        ({"tools": [{"type": "computer_use_preview"}, {"type": "computer"}]}, []),
        ({"tools": [CLOCK | {"tools": [CLOCK]}]}, []),
        ({"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}, USER]}, ["web_search"]),
        (
            {
                "tools": [EXEC, {"type": "web_search"}],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            },
            [],
        ),
        ({"tools": [{"type": "web_search"}], "input": [USER, {"type": "additional_tools", "tools": [EXEC]}]}, []),
    ],
)
def test_hosted_tools_are_told_unless_the_harness_has_tools_that_are_not_shown(
    fields: dict[str, Any], hosted: list[str]
) -> None:
    request = parse(**fields)
    assert (request.tools, request.hosted_tools) == ([], hosted)


def test_calls_leave_as_their_tools_items() -> None:
    request = parse(tools=[EXEC, PATCH, SEARCH, CLOCK, {"type": "local_shell"}, {"type": "apply_patch"}])
    message = calls(
        ("exec", '{"a" :1'),
        ("clock__sleep", "{}"),
        ("patch", '{"input" : "é\\n"}'),
        ("clock__patch", "not JSON"),
        ("tool_search", '{"limit" : 1.0}'),
        ("tool_search", "[]"),
        ("local_shell", '{"command":["ls"],"timeout_ms":5}'),
        ("local_shell", '{"command":"ls"}'),
        ("apply_patch", '{"type":"delete_file","path":"a"}'),
        ("apply_patch", '{"type":"create_file","path":"a"}'),
        ("unheard_of", "{}"),
    )
    told = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in output(request, answered(message))]
    assert [item.pop("call_id") for item in told] == [f"c{n}" for n in range(11)]
    assert told == [
        {"type": "function_call", "name": "exec", "arguments": '{"a" :1'},
        {"type": "function_call", "name": "sleep", "namespace": "clock", "arguments": "{}"},
        {"type": "custom_tool_call", "name": "patch", "input": "é\n"},
        {"type": "custom_tool_call", "name": "patch", "namespace": "clock", "input": "not JSON"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"limit": 1.0}},
        {"type": "tool_search_call", "execution": "client", "arguments": "[]"},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "timeout_ms": 5, "env": {}}},
        {"type": "function_call", "name": "local_shell", "arguments": '{"command":"ls"}'},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "function_call", "name": "apply_patch", "arguments": '{"type":"create_file","path":"a"}'},
        {"type": "function_call", "name": "unheard_of", "arguments": "{}"},
    ]


# --- the suite

DECLARED: list[Any] = [EXEC, PATCH, CLOCK]
ALL = ["exec", "patch", "clock__sleep", "clock__patch"]


def chosen(choice: Any) -> dict[str, Any]:
    return {"tools": DECLARED, "tool_choice": choice}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return chosen({"type": "allowed_tools", "mode": mode, "tools": tools})


class TestOpenAIResponses(DialectSuite):
    dialect = DIALECT
    smallest = SMALLEST
    stops = None
    refused = (
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [USER, {"role": "user", "content": [{"type": "input_audio"}]}]}, "input[1].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "shell_call", "call_id": "c"}]}, "input[0].action"),
        ({"input": [{"type": "item_reference"}]}, "input[0]"),
        ({"input": [USER, {"type": "compaction", "encrypted_content": "x"}]}, "input[1]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [CLOCK, {"type": "namespace", "name": "n", "tools": [{}]}]}, "tools[1].tools[0]"),
        ({"tools": [EXEC], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [EXEC], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"tool_choice": "never"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"generate": False}, "generate"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        ({"max_output_tokens": 2**63}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
    )
    raw_fields = (
        b'"tools":[{"type":"function","name":"f","parameters":%b}]',
        b'"frobnicate":%b',
        b'"client_metadata":%b',
    )
    nullable = tuple(field.name for field in msgspec.structs.fields(DIALECT.request_type) if field.name not in SMALLEST)
    efforts = (
        ({"reasoning": {"effort": "xhigh", "summary": "auto"}}, "high"),
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"reasoning": {"summary": "auto"}}, None),
        ({}, None),
    )
    tool_choices = (
        (chosen(None), None, ALL),
        (chosen("none"), "none", ALL),
        (chosen("required"), "required", ALL),
        (chosen({"type": "function", "name": "exec"}), ForcedTool(NamedFunction("exec")), ALL),
        (chosen({"type": "custom", "name": "patch"}), ForcedTool(NamedFunction("patch")), ALL),
        (
            chosen({"type": "function", "name": "sleep", "namespace": "clock"}),
            ForcedTool(NamedFunction("clock__sleep")),
            ALL,
        ),
        (allowed("required", {"type": "custom", "name": "patch"}), "required", ["patch"]),
        (allowed("auto", {"type": "web_search"}), None, []),
        (
            {"tools": [{"type": "shell"}, EXEC], "tool_choice": {"type": "shell"}},
            ForcedTool(NamedFunction("shell")),
            ["shell", "exec"],
        ),
    )
    overflows = (
        (None, "exceeds the context window"),
        (None, "context_length_exceeded"),
        ((212345, 200000), "212345 tokens > 200000 maximum"),
    )


@pytest.mark.parametrize(
    ("item", "good", "bad"),
    [
        (b'{"type":"shell_call_output","call_id":"c","output":%b}', b"{}", DEEP),
        (b'{"role":"user","content":%b}', b'"a"', b'"\xed\xa0\x80"'),
        (b'{"type":"tool_search_call","call_id":"c","arguments":%b}', b'"a"', b'"\xed\xa0\x80"'),
        (b'{"type":"shell_call","call_id":"c","action":%b}', b'{"x":1}', b'{"x":1e999}'),
    ],
    ids=["output", "content", "arguments", "action"],
)
def test_an_item_is_read_unless_it_holds_what_no_log_can(item: bytes, good: bytes, bad: bytes) -> None:
    [message] = TestOpenAIResponses.with_field(b'"input":[%b]', item % good).messages
    assert message != Message("user", "hi")
    with pytest.raises(RefusalError) as error:
        TestOpenAIResponses.with_field(b'"input":[%b]', item % bad)
    assert error.value.refusal is Refusal.INVALID


# --- the rest of the request


def test_what_is_asked_of_the_answer_is_read_and_unknown_fields_are_skipped() -> None:
    request = parse(
        temperature=0.3,
        top_p=0.9,
        max_output_tokens=50,
        parallel_tool_calls=False,
        reasoning={"effort": "xhigh", "summary": "auto", "context": "all_turns"},
        previous_response_id="resp_1",
        stream=True,
        stream_options={"include_obfuscation": False},
        client_metadata={"x": "y"},
        frobnicate=[1],
        top_logprobs=3,
    )
    assert request.sampling == Sampling(temperature=0.3, top_p=0.9, max_tokens=50)
    assert (request.parallel_tool_calls, request.reasoning_effort, request.continues) == (False, "high", "resp_1")
    assert (request.stream, request.store) == (True, True)
    assert not parse(store=False).store
    assert parse(input=None, previous_response_id="resp_1").messages == []


def test_text_formats_are_response_formats() -> None:
    assert bytes(parse(text={"format": {"type": "text"}, "verbosity": "low"}).response_format) == b""
    assert json.loads(bytes(parse(text={"format": {"type": "json_object"}}).response_format)) == {"type": "json_object"}
    body = b'{"input":"x","text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{"z": 1,"a":2.0}}}}'
    told = bytes(DIALECT.parse(Wire(body)).response_format)
    assert told == b'{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"z": 1,"a":2.0}}}'


def test_a_call_may_continue_another_and_a_count_may_not() -> None:
    body = json.dumps({"input": "x", "previous_response_id": "resp_1"}).encode()
    assert DIALECT.parse(Wire(body)).continues == "resp_1"
    with pytest.raises(RefusalError, match="send the whole conversation as input") as refused:
        DIALECT.parse(Wire(body, serves=Serves.COUNT))
    assert (refused.value.refusal, refused.value.field) == (Refusal.INVALID, "previous_response_id")
    assert DIALECT.parse(Wire(b'{"input":"x"}', serves=Serves.COUNT)).messages == [Message("user", "x")]


def test_a_reference_is_the_part_of_its_call_that_its_id_names() -> None:
    hexed = "0" * 31 + "a"
    ids = [f"rs_{hexed}", f"msg_{hexed}", f"fc_{hexed}_0", f"ctcr_{hexed}_1"]
    items = [USER, *({"type": "item_reference", "id": each} for each in ids), {"id": "msg_1"}]
    request = parse(input=items, instructions="Be brief.")
    named = [(ref.item_id, ref.field, ref.position, ref.call_id, ref.part) for ref in request.references]
    assert named == [
        (ids[0], "input[1].id", 2, f"resp_{hexed}", "reasoning"),
        (ids[1], "input[2].id", 2, f"resp_{hexed}", "content"),
        (ids[2], "input[3].id", 2, f"resp_{hexed}", 0),
        (ids[3], "input[4].id", 2, f"resp_{hexed}", 1),
        ("msg_1", "input[5].id", 2, None, "content"),
    ]
    assert [message.role for message in request.messages] == ["system", "user", "assistant"]


def test_references_are_not_counted() -> None:
    body = json.dumps({"input": [{"type": "item_reference", "id": "msg_1"}]}).encode()
    with pytest.raises(RefusalError, match="send the item itself") as refused:
        DIALECT.parse(Wire(body, serves=Serves.COUNT))
    assert (refused.value.refusal, refused.value.field) == (Refusal.INVALID, "input[0].id")


# --- the answer


def test_routes_ask_count_and_turn_websockets_away() -> None:
    assert {(route.method, route.path): route.serves for route in DIALECT.routes} == {
        ("POST", "/v1/responses"): Serves.CALL,
        ("GET", "/v1/responses"): Serves.UPGRADE,
        ("POST", "/v1/responses/input_tokens"): Serves.COUNT,
        ("POST", "/responses"): Serves.CALL,
        ("GET", "/responses"): Serves.UPGRADE,
        ("POST", "/responses/input_tokens"): Serves.COUNT,
    }
    assert InputTokenCountResponse.model_validate_json(DIALECT.count(7)).input_tokens == 7


def test_a_response_is_whole_and_repeats_its_request() -> None:
    request = parse(
        tools=[EXEC, PATCH, CLOCK],
        tool_choice={"type": "custom", "name": "patch"},
        metadata={"k": "v"},
        user="u",
        reasoning={"effort": "low", "summary": "auto"},
        instructions="Be brief.",
        text={"verbosity": "low"},
        include=["reasoning.encrypted_content"],
        max_output_tokens=9,
    )
    said = Message("assistant", "Done.", "hm", [ToolCall("c1", FunctionCall("exec", "{}"))])
    response = Response.model_validate_json(DIALECT.body(CALL_ID, 17, request, [answered(said)]))
    assert (response.id, response.created_at, response.model, response.status) == (CALL_ID, 17, "m", "completed")
    assert response.output_text == "Done."
    assert [item.id for item in response.output] == [
        CALL_ID.replace("resp", kind) + tail for kind, tail in (("rs", ""), ("msg", ""), ("fc", "_0"))
    ]
    thought = response.output[0]
    assert thought.type == "reasoning"
    assert ([part.text for part in thought.summary], thought.encrypted_content) == (["hm"], signature.seal("hm"))
    assert response.usage is not None
    assert response.usage.model_dump(exclude_none=True) == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }
    told = response.model_dump(exclude_none=True)
    assert [tool["type"] for tool in told["tools"]] == ["function", "custom", "namespace"]
    assert (told["tool_choice"], told["metadata"], told["user"], told["max_output_tokens"]) == (
        {"type": "custom", "name": "patch"},
        {"k": "v"},
        "u",
        9,
    )
    assert (told["instructions"], told["reasoning"]) == ("Be brief.", {"effort": "low", "summary": "auto"})
    assert told["text"] == {"format": {"type": "text"}, "verbosity": "low"}


def test_a_signature_leaves_only_where_it_was_asked_for() -> None:
    [thought] = output(parse(), answered(Message("assistant", None, "hm")))
    assert "encrypted_content" not in thought


@pytest.mark.parametrize(("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_off_is_incomplete(reason: str, why: str) -> None:
    answer = answered(Message("assistant", "Do", "hm"), reason)
    response = Response.model_validate_json(DIALECT.body(CALL_ID, 17, parse(), [answer]))
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == ("incomplete", why)
    assert response.output[-1].model_dump()["status"] == "incomplete"
    assert streamed(parse(), answer)[-1].type == "response.incomplete"


def test_an_empty_answer_is_still_a_turn() -> None:
    for content in (None, ""):
        items = output(parse(), answered(Message("assistant", content)))
        assert read(*items) == [Message("assistant", "")]


def streamed(request: ChatRequest, answer: Answer) -> list[Any]:
    events = []
    for name, data in events_of(DIALECT.stream(CALL_ID, 17, request, [answer])):
        told = EVENTS.validate_json(data)
        assert name == told.type == json.loads(data)["type"]
        events.append(told)
    return events


arguments = st.one_of(
    texts,
    texts.map(lambda text: json.dumps({"input": text})),
    st.just('{"command" : ["ls"]}'),
    indented_objects,
    st.just('{"type":"create_file","path":"a","diff":"+"}'),
)
names = st.sampled_from(["exec", "patch", "clock__sleep", "clock__patch", "tool_search", "local_shell", "shell", "x"])
calls_of_all_kinds = calls_with(arguments, names)
ASKED = DIALECT.parse(
    Wire(
        json.dumps(
            {
                "model": "m",
                "input": [USER],
                "tools": [
                    *(EXEC, PATCH, SEARCH, CLOCK),
                    *({"type": kind} for kind in ("local_shell", "shell", "apply_patch")),
                ],
                "tool_choice": {"type": "function", "name": "exec"},
                "text": {"format": {"type": "json_schema", "name": "o", "schema": {"type": "object"}}},
                "include": ["reasoning.encrypted_content"],
            },
            indent=1,
        ).encode()
    )
)


@given(answers_with(calls_of_all_kinds))
def test_body_and_stream_of_one_answer_say_the_same(answer: Answer) -> None:
    body = Response.model_validate_json(DIALECT.body(CALL_ID, 17, ASKED, [answer]))
    events = streamed(ASKED, answer)

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response == body.model_copy(
        update={"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    )
    assert (events[-1].response, events[-1].type) == (body, f"response.{body.status}")
    opened: list[tuple[int, str]] = []
    done: list[Any] = []
    pieces: dict[str, str] = {}
    for event in events[2:-1]:
        assert event.output_index == len(done), "items come one after another"
        match event.type:
            case "response.output_item.added":
                opened.append((event.output_index, event.item.id))
            case "response.output_item.done":
                done.append(event.item)
            case _:
                assert (event.output_index, event.item_id) == opened[-1]
        if event.type.endswith(".delta"):
            pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
    assert done == body.output
    assert opened == [(index, item.id) for index, item in enumerate(body.output)]
    assert pieces == {item.id: said for item in body.output if (said := text_of(item))}


def text_of(item: Any) -> str:
    match item.type:
        case "reasoning":
            return "".join(part.text for part in item.summary)
        case "message":
            return "".join(part.text for part in item.content)
        case "function_call":
            return str(item.arguments)
        case "custom_tool_call":
            return str(item.input)
    return ""


def alike(arguments: str) -> Any:
    """Arguments as they are compared when a turn comes back."""
    try:
        return ("json", msgspec.json.decode(arguments))
    except msgspec.DecodeError:
        return arguments


@given(messages_with(calls_of_all_kinds), st.booleans())
def test_a_turn_comes_back_as_it_was_sampled(message: Message, shortened: bool) -> None:
    items = output(ASKED, answered(message))
    for item in items:
        if item["type"] == "reasoning":
            item |= {"content": None} | ({"summary": []} if shortened else {})
    [turn, user] = read(*items, USER)
    assert user == Message("user", "hi")
    assert (turn.role, turn.content or "", turn.reasoning or "") == (
        "assistant",
        message.content or "",
        message.reasoning or "",
    )
    assert [(call.id, call.function.name, alike(call.function.arguments)) for call in turn.tool_calls] == [
        (call.id, call.function.name, alike(call.function.arguments)) for call in message.tool_calls
    ]


@given(messages_with(calls_of_all_kinds))
def test_a_turn_comes_back_without_its_ids_too(message: Message) -> None:
    """As opencode sends it; then a custom call whose arguments held no input can't be told from one whose input they are."""
    items = output(ASKED, answered(message))
    assert len(read(*({name: value for name, value in item.items() if name != "id"} for item in items), USER)) == 2


# --- errors


@pytest.mark.parametrize("refusal", list(Refusal))
def test_every_refusal_has_a_shape_in_and_before_a_stream(refusal: Refusal) -> None:
    refused = RefusalError(refusal, "why", field="input", retry_after_s=3)
    assert json.loads(DIALECT.error(refused))["error"]["code"] is not None or refusal is Refusal.INVALID
    events = [one.split("\n") for one in DIALECT.error_event(refused).decode().split("\n\n")[:-1]]
    created, _, told = (json.loads(data.removeprefix("data: ")) for _, data in events)
    assert [name for name, _ in events] == [f"event: response.{name}" for name in ("created", "in_progress", "failed")]
    assert EVENTS.validate_python(created).type == "response.created"
    assert told["response"]["error"]["code"] == FAILURES[refusal]
    assert "try again in 3s" in told["response"]["error"]["message"]
    if refusal not in (Refusal.CONTEXT_LENGTH, Refusal.SPENT):  # codes that clients know, and the client's types don't
        assert EVENTS.validate_python(told).type == "response.failed"


# --- the whole schema

PASSED_OVER = {
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call"),
    *("computer_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
    *("program", "program_output", "configuration_update"),
}
HOSTED = {
    *("file_search", "computer", "computer_use_preview", "web_search", "web_search_2025_08_26", "mcp"),
    *("code_interpreter", "programmatic_tool_calling", "image_generation", "web_search_preview"),
    "web_search_preview_2025_03_11",
}


def types_of(union: Any) -> set[str]:
    """What `type` may be in a union of the client's models."""
    models = [model for model in get_args(get_args(union)[0]) if hasattr(model, "model_fields")]
    return {kind for model in models for kind in re.findall(r"'(\w+)'", str(model.model_fields["type"].annotation))}


def test_every_field_of_the_providers_schema_has_a_rule() -> None:
    told = set(re.findall(r"\w+", str(openai_responses.__doc__)))
    honoured = {field.name for field in msgspec.structs.fields(DIALECT.request_type)}
    for params in (ResponseCreateParamsBase, InputTokenCountParams):
        assert set(params.__annotations__) - told - honoured <= {"personality"}
    assert honoured <= told


def test_every_type_of_item_and_tool_has_a_rule() -> None:
    flat: set[str] = types_of(ResponseInputItem) | {"message"}
    passed_over = set()
    for kind in flat:
        try:
            if not read({"type": kind, "id": "x", "tools": [], "role": "developer", "call_id": None}, USER)[:-1]:
                passed_over.add(kind)
        except RefusalError:
            pass  # read, and not whole; or refused by its type
    assert passed_over - {"additional_tools", "tool_search_output", "message"} == PASSED_OVER
    shown = {kind for kind in types_of(Tool) if parse(tools=[{"type": kind, "name": "n", "execution": "client"}]).tools}
    assert types_of(Tool) - shown - {"namespace"} == HOSTED
