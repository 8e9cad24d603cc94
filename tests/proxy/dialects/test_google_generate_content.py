"""Google's generateContent in and out of the canonical form; the official client's own models judge what leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from google.genai.types import Candidate, FinishReason, GenerateContentResponse, Tool
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat import (
    NOT_GIVEN,
    Answer,
    ChatRequest,
    ForcedTool,
    FunctionCall,
    Message,
    NamedFunction,
    ToolCall,
    Usage,
)
from proxy.dialects.base import Wire
from proxy.dialects.google_generate_content import STATUSES, GoogleGenerateContent
from proxy.errors import Refusal, RefusalError
from tests.proxy.dialects.sse import events_of
from tests.proxy.dialects.suite import DialectSuite, answer_of, answers_with, calls_with, object_texts, texts
from topics.types.completion import Sampling

DIALECT = GoogleGenerateContent()
USER = {"role": "user", "parts": [{"text": "hi"}]}
SMALLEST: dict[str, Any] = {"contents": [USER]}
PATH = {"model": "m", "method": "generateContent"}


def parse(method: str = "generateContent", query: dict[str, str] | None = None, **fields: Any) -> ChatRequest:
    return DIALECT.parse(Wire(json.dumps(SMALLEST | fields).encode(), PATH | {"method": method}, query or {}))


def messages(*contents: Any) -> list[Message]:
    return parse(contents=contents).messages


def call(name: str = "f", args: Any = None, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args or {}, **fields}}


def response(name: str, told: Any, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": told, **fields}}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": parts}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": parts}


def configured(**config: Any) -> ChatRequest:
    return parse(generationConfig=config)


FILM = {"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}


# --- both spellings


def test_snake_case_is_read_as_camel_case_is_and_free_values_keep_their_names() -> None:
    args = {"function_call": {"some_thing": 1}}
    snake: dict[str, Any] = {
        "contents": [
            USER,
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": args}, "thoughtSignature": "x"}]},
            {"parts": [{"function_response": {"name": "f", "response": args, "will_continue": False}}]},
        ],
        "system_instruction": {"parts": [{"text": "be"}]},
        "tools": [
            {"function_declarations": [{"name": "f", "parameters": {"properties": {"mime_type": {"type": "STRING"}}}}]}
        ],
        "tool_config": {"function_calling_config": {"mode": "any", "allowed_function_names": ["f"]}},
        "generation_config": {
            "max_output_tokens": 5,
            "stop_sequences": ["x"],
            "thinking_config": {"thinking_budget": 0},
        },
    }
    told = parse(**snake)
    assert [message.role for message in told.messages] == ["system", "user", "assistant", "tool"]
    assert told.messages[2].tool_calls[0].function.arguments == '{"function_call":{"some_thing":1}}'
    assert told.messages[3].content == '{"function_call":{"some_thing":1}}'
    assert bytes(told.tools[0].function.parameters) == b'{"properties":{"mime_type":{"type":"string"}}}'
    assert told.tool_choice == ForcedTool(NamedFunction("f"))
    assert (told.sampling.max_tokens, told.stop, told.reasoning_effort) == (5, ["x"], "none")


# --- tools and configuration


def test_googles_schema_becomes_json_schema() -> None:
    schema = {
        "type": "OBJECT",
        "required": ["a"],
        "properties": {
            "type": {"type": "STRING", "enum": ["STRING"], "nullable": True, "description": "STRING"},
            "a": {"type": "ARRAY", "min_items": "1", "items": {"any_of": [{"type": "INTEGER"}, {"type": "NUMBER"}]}},
            "b": {"anyOf": [{"type": "BOOLEAN"}], "nullable": True, "default": {"type": "STRING"}},
            "c": {"type": "TYPE_UNSPECIFIED"},
        },
    }
    told = parse(tools=[{"functionDeclarations": [{"name": "f", "description": "d", "parameters": schema}]}])
    assert json.loads(bytes(told.tools[0].function.parameters)) == {
        "type": "object",
        "required": ["a"],
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["STRING", None], "description": "STRING"},
            "a": {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "integer"}, {"type": "number"}]}},
            "b": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": {"type": "STRING"}},
            "c": {},
        },
    }


def test_a_json_schema_keeps_its_order_and_the_tools_google_runs_are_not_shown() -> None:
    declared = {"name": "f", "parametersJsonSchema": {"z": 1, "type": "object", "a": 2.0}, "behavior": "BLOCKING"}
    told = parse(
        tools=[{"googleSearch": {}}, {"functionDeclarations": [declared, {"name": "g"}]}, {"codeExecution": {}}]
    )
    assert [tool.function.name for tool in told.tools] == ["f", "g"]
    assert bytes(told.tools[0].function.parameters) == b'{"z":1,"type":"object","a":2.0}'
    assert bytes(told.tools[1].function.parameters) == bytes(NOT_GIVEN)
    assert told.hosted_tools == ["googleSearch", "codeExecution"]


def test_every_tool_of_the_public_schema_is_the_harnesss_or_hosted() -> None:
    run_by_harnesses = {"function_declarations", "computer_use"}
    for name, field in Tool.model_fields.items():
        for spelling in (name, str(field.alias)):
            hosted = parse(tools={spelling: {"name": "f"}}).hosted_tools
            assert hosted == ([] if name in run_by_harnesses else [field.alias])
            assert parse(tools={spelling: None}).hosted_tools == []


def test_sampling_is_read_and_what_changes_nothing_is_skipped() -> None:
    told = configured(
        temperature=0.3,
        topP=0.9,
        topK=64.0,
        seed=7,
        maxOutputTokens="5",
        presencePenalty=0.1,
        frequencyPenalty=0.2,
        candidateCount=3,
        stopSequences="x",
        responseLogprobs=True,
        logprobs=3,
        mediaResolution="MEDIA_RESOLUTION_LOW",
        frobnicate=[1],
    )
    assert told.sampling == Sampling(
        temperature=0.3, top_p=0.9, top_k=64, seed=7, max_tokens=5, presence_penalty=0.1, frequency_penalty=0.2
    )
    assert (told.choices, told.stop, told.model) == (3, ["x"], "m")


def test_nulls_in_a_configuration_are_as_good_as_missing() -> None:
    assert (
        configured(**dict.fromkeys(["thinkingConfig", "stopSequences", "candidateCount", "responseSchema"])) == parse()
    )


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, None),
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, {"type": "json_object"}),
        ({"responseMimeType": "application/json", "responseSchema": {"type": "STRING"}}, {"type": "string"}),
        ({"responseMimeType": "application/json", "responseJsonSchema": {"type": "STRING"}}, {"type": "string"}),
        ({"responseFormat": {"text": {"mimeType": "application/json", "jsonSchema": {}}}}, {}),
    ],
)
def test_a_response_schema_is_structured_output(config: dict[str, Any], told: Any) -> None:
    found = bytes(configured(**config).response_format)
    if told is None:
        assert not found
    elif "json_object" in told.values():
        assert json.loads(found) == told
    else:
        assert json.loads(found) == {
            "type": "json_schema",
            "json_schema": {"name": "response", "schema": told, "strict": True},
        }


@pytest.mark.parametrize(
    ("method", "query", "streams"),
    [
        ("generateContent", {"alt": "sse"}, False),
        ("streamGenerateContent", {}, False),
        ("streamGenerateContent", {"alt": "sse"}, True),
        ("streamGenerateContent", {"$alt": "sse"}, True),
    ],
)
def test_a_stream_of_events_is_one_with_alt_sse(method: str, query: dict[str, str], streams: bool) -> None:
    assert parse(method, query).stream is streams


def test_a_count_takes_contents_or_a_whole_request() -> None:
    inner = {"model": "models/m", "contents": [USER], "systemInstruction": "be"}
    assert DIALECT.parse(counting({"contents": [USER]})).messages == [Message("user", content="hi")]
    assert len(DIALECT.parse(counting({"generateContentRequest": inner})).messages) == 2
    assert json.loads(DIALECT.count(7)) == {"totalTokens": 7}


def counting(body: Any) -> Wire:
    return Wire(json.dumps(body).encode(), {"model": "m", "method": "countTokens"})


def test_a_publisher_other_than_google_is_a_part_of_the_models_name() -> None:
    path = {"publisher": "Qwen", "model": "Qwen3-8B", "method": "generateContent"}
    body = json.dumps({"contents": "hi"}).encode()
    assert DIALECT.parse(Wire(body, path)).model == "Qwen/Qwen3-8B"
    assert DIALECT.parse(Wire(body, path | {"publisher": "google"})).model == "Qwen3-8B"


# --- refusals


ALL = ["f", "g", "h"]


def declared(**config: Any) -> dict[str, Any]:
    tools = [{"functionDeclarations": [{"name": name} for name in "fgh"]}]
    return {"tools": tools, "toolConfig": {"functionCallingConfig": config}}


class TestGoogleGenerateContent(DialectSuite):
    dialect = DIALECT
    smallest = SMALLEST
    path = PATH
    stops = "generationConfig.stopSequences"
    refused = (
        ({"contents": []}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": [{"role": "user", "parts": []}]}, "contents"),
        ({"contents": 5}, "contents[0]"),
        ({"contents": [{"role": "wizard", "parts": [{"text": "x"}]}]}, "contents[0].role"),
        ({"contents": [{"parts": [{"text": 5}]}]}, "contents[0].parts[0].text"),
        ({"contents": [user(FILM)]}, "contents[0].parts[0]"),
        ({"contents": [user({"fileData": {"fileUri": "gs://x/y.png"}})]}, "contents[0].parts[0]"),
        ({"contents": [model({"functionCall": {}})]}, "contents[0].parts[0].functionCall.name"),
        (
            {"contents": [model({"functionCall": {"name": "f", "args": "{}"}})]},
            "contents[0].parts[0].functionCall.args",
        ),
        ({"cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0]"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode"),
        (
            {"toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["x"]}}},
            "toolConfig.functionCallingConfig.allowedFunctionNames",
        ),
        ({"generationConfig": {"temperature": "hot"}}, "generationConfig.temperature"),
        ({"generationConfig": {"candidateCount": 9}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"seed": 2**63}}, "generationConfig.seed"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig.responseModalities"),
    )
    raw_fields = (
        b'"tools":[{"functionDeclarations":[{"name":"f","parametersJsonSchema":%b}]}]',
        b'"tools":[{"functionDeclarations":[{"name":"f","parameters":{"items":%b}}]}]',
        b'"labels":%b',
    )
    nullable = (
        "tools",
        "toolConfig",
        "systemInstruction",
        "generationConfig",
        "cachedContent",
        "safetySettings",
    )
    efforts = tuple(
        ({"generationConfig": {"thinkingConfig": config}}, effort)
        for config, effort in (
            ({}, None),
            ({"thinkingBudget": -1}, None),
            ({"thinkingBudget": 0}, "none"),
            ({"thinkingBudget": 1024}, "low"),
            ({"thinkingBudget": 8192}, "medium"),
            ({"thinkingBudget": 24576}, "high"),
            ({"thinkingLevel": "MINIMAL"}, "low"),
            ({"thinkingLevel": "medium"}, "medium"),
            ({"thinkingLevel": "XHIGH"}, "high"),
            ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None),
        )
    )
    tool_choices = (
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, None, []),
        (declared(), None, ALL),
        (declared(mode="MODE_UNSPECIFIED"), None, ALL),
        (declared(mode="AUTO"), "auto", ALL),
        (declared(mode="NONE"), "none", ALL),
        (declared(mode="VALIDATED", allowedFunctionNames=["g"]), "auto", ["g"]),
        (declared(mode="ANY"), "required", ALL),
        (declared(mode="ANY", allowedFunctionNames=["g", "h"]), "required", ["g", "h"]),
        (declared(mode="ANY", allowedFunctionNames=["g"]), ForcedTool(NamedFunction("g")), ALL),
    )
    overflows = (
        ((201, 200), "The input token count (201) exceeds the maximum number of tokens allowed (200)."),
        (None, "The input token count exceeds the maximum number of tokens allowed."),
    )


# --- answers

wild_calls = calls_with(texts | object_texts)


@given(st.lists(answers_with(wild_calls), min_size=1, max_size=2), st.booleans())
def test_body_stream_and_array_of_one_answer_say_the_same(answers: list[Answer], thoughts: bool) -> None:
    config: dict[str, Any] = {"generationConfig": {"thinkingConfig": {"includeThoughts": thoughts}}}
    body = GenerateContentResponse.model_validate_json(DIALECT.body("gen-1", 17, parse(**config), answers))
    events = DIALECT.stream("gen-1", 17, parse("streamGenerateContent", {"alt": "sse"}, **config), answers)
    assert not {"\x85", "\u2028", "\u2029"} & set(events.decode())
    streamed = [GenerateContentResponse.model_validate_json(data) for _, data in events_of(events)]
    array = json.loads(DIALECT.body("gen-1", 17, parse("streamGenerateContent", **config), answers))

    assert streamed == [GenerateContentResponse.model_validate(one) for one in array]
    assert [chunk.usage_metadata is not None for chunk in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1].usage_metadata == body.usage_metadata
    assert {(chunk.response_id, chunk.model_version, chunk.create_time) for chunk in streamed} == {
        (body.response_id, body.model_version, body.create_time)
    }
    assert joined(streamed, len(answers)) == body.candidates


def joined(chunks: Sequence[GenerateContentResponse], count: int) -> list[Candidate]:
    """The candidates of a stream, as a client puts them together; nothing may follow a finish reason."""
    whole: list[Candidate | None] = [None] * count
    for candidate in (candidate for chunk in chunks for candidate in chunk.candidates or []):
        at = candidate.index or 0
        before = whole[at]
        if before is None:
            whole[at] = candidate
            continue
        assert before.finish_reason is None
        assert before.content is not None
        assert before.content.parts is not None
        assert candidate.content is not None
        parts = before.content.parts + (candidate.content.parts or [])
        whole[at] = candidate.model_copy(update={"content": candidate.content.model_copy(update={"parts": parts})})
    return [candidate for candidate in whole if candidate is not None]


@given(
    answers_with(calls_with(object_texts)),
    st.sampled_from(["verbatim", "thoughts dropped", "ids dropped"]),
    st.booleans(),
    st.booleans(),
)
def test_what_is_echoed_is_the_message_that_was_sampled(
    answer: Answer, how: str, thoughts: bool, through_python: bool
) -> None:
    request = parse(generationConfig={"thinkingConfig": {"includeThoughts": thoughts}})
    body = DIALECT.body("gen-1", 17, request, [answer])
    if through_python:
        read = GenerateContentResponse.model_validate_json(body)
        assert read.candidates is not None
        assert read.candidates[0].content is not None
        parts = read.candidates[0].content.model_dump(mode="json", by_alias=True, exclude_none=True)["parts"]
    else:
        parts = json.loads(body)["candidates"][0]["content"]["parts"]
    if how == "thoughts dropped":
        parts = [part for part in parts if not part.get("thought")]
    if how == "ids dropped":
        for part in parts:
            part.get("functionCall", {}).pop("id", None)
    [_, echoed] = messages(USER, model(*parts))
    expected = normal(answer.message)
    if how == "ids dropped":
        expected, echoed = without_ids(expected), without_ids(echoed)
    assert echoed == expected


def normal(message: Message) -> Message:
    """No text is none, and arguments as the log keeps what a client parsed."""
    calls = [
        ToolCall(one.id, FunctionCall(one.function.name, spelt(one.function.arguments))) for one in message.tool_calls
    ]
    return Message("assistant", message.content or None, message.reasoning or None, calls)


def spelt(told: str) -> str:
    return json.dumps(json.loads(told), ensure_ascii=False, separators=(",", ":"))


def without_ids(message: Message) -> Message:
    return msgspec.structs.replace(
        message, tool_calls=[msgspec.structs.replace(one, id="") for one in message.tool_calls]
    )


def body_of(answer: Answer, request: ChatRequest | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(DIALECT.body("gen-1", 17, request or parse(), [answer]))
    return told


def test_the_signature_stands_on_the_first_call_and_arguments_leave_as_sampled() -> None:
    calls = [ToolCall("c1", FunctionCall("f", '{"a" : 1.50}')), ToolCall("c2", FunctionCall("g", ""))]
    answer = answer_of(Message("assistant", "So.", "Hm.", calls), finish_reason="tool_calls")
    assert b'"args":{"a" : 1.50}' in DIALECT.body("gen-1", 17, parse(), [answer])
    text, first, second = body_of(answer)["candidates"][0]["content"]["parts"]
    assert text == {"text": "So."}
    assert set(first) == {"functionCall", "thoughtSignature"}
    assert second == {"functionCall": {"id": "c2", "name": "g", "args": {}}}


def test_without_calls_it_stands_on_the_text_be_it_empty() -> None:
    [part] = body_of(answer_of(Message("assistant", None, "Hm."), finish_reason="length"))["candidates"][0]["content"][
        "parts"
    ]
    assert (set(part), part["text"]) == ({"text", "thoughtSignature"}, "")
    assert messages(USER, model(part))[1] == Message("assistant", reasoning="Hm.")


@pytest.mark.parametrize("spelling", ['{"a": ', "[1]", '"x"', "null", '{"a": NaN}', '{"a": "\\ud800"}', "\u00a0{}"])
def test_arguments_that_are_no_object_end_the_candidate_as_at_google(spelling: str) -> None:
    good, bad = ToolCall("c1", FunctionCall("f", "{}")), ToolCall("c2", FunctionCall("g", spelling))
    [candidate] = body_of(answer_of(Message("assistant", "So.", "Hm.", [good, bad])))["candidates"]
    assert candidate == {
        "content": {},
        "finishReason": "MALFORMED_FUNCTION_CALL",
        "finishMessage": f"Malformed function call: g({spelling})",
        "index": 0,
    }
    assert Candidate.model_validate(candidate).finish_reason is FinishReason.MALFORMED_FUNCTION_CALL


def test_a_call_that_was_cut_off_is_left_out_and_the_rest_told() -> None:
    good, cut = ToolCall("c1", FunctionCall("f", "{}")), ToolCall("c2", FunctionCall("g", '{"a": "b'))
    [candidate] = body_of(answer_of(Message("assistant", "So.", None, [good, cut]), "length"))["candidates"]
    assert candidate["finishReason"] == "MAX_TOKENS"
    assert candidate["content"]["parts"] == [{"text": "So."}, {"functionCall": {"id": "c1", "name": "f", "args": {}}}]


def test_usage_tells_thoughts_beside_the_answer_and_no_training_field_leaves() -> None:
    told = body_of(answer_of(Message("assistant", "x"), usage=Usage(10, 5, 4, 2)))
    assert told["usageMetadata"] == {
        "promptTokenCount": 10,
        "candidatesTokenCount": 3,
        "totalTokenCount": 15,
        "cachedContentTokenCount": 4,
        "thoughtsTokenCount": 2,
    }
    assert set(told) == {"candidates", "usageMetadata", "modelVersion", "createTime", "responseId"}
    assert set(told["candidates"][0]) == {"content", "finishReason", "index"}


def test_models_are_listed_and_told_one_by_one() -> None:
    listed = json.loads(DIALECT.models({"a/b": 8192, "c": None}, None))["models"]
    assert [(model["name"], model.get("inputTokenLimit")) for model in listed] == [
        ("models/a/b", 8192),
        ("models/c", None),
    ]
    assert json.loads(DIALECT.models({"c": None}, "c"))["name"] == "models/c"


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_has_googles_shape_as_body_and_as_event(refusal: Refusal) -> None:
    refused = RefusalError(refusal, "why", retry_after_s=3)
    told = json.loads(DIALECT.error(refused))["error"]
    assert (told["code"], told["status"]) == (refusal.status, STATUSES[refusal])
    assert told["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"}]
    assert json.loads(DIALECT.error_event(refused)) == {"error": told}


def test_the_field_at_fault_is_a_violation() -> None:
    [detail] = json.loads(DIALECT.error(RefusalError(Refusal.INVALID, "why", field="contents[0]")))["error"]["details"]
    assert detail["fieldViolations"] == [{"field": "contents[0]", "description": "why"}]
