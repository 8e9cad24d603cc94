"""What leaves as events in any dialect: an event is one line of data, however requests and arguments were written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat import Answer, FunctionCall, Message, ToolCall, Usage
from proxy.dialects.base import Dialect, Wire
from proxy.dialects.installed import dialects
from tests.proxy.dialects.sse import events_of, payloads_of

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION = {"name": "look", "description": "Two\nlines.", "parameters": SCHEMA}
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "openai_chat": {
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA}},
        "stream": True,
    },
    "openai_responses": {
        "input": MESSAGES,
        "tools": [{"type": "function", **FUNCTION}, {"type": "tool_search", "execution": "client"}],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "o", "schema": SCHEMA, "strict": True}},
        "metadata": {"two": "li\nnes"},
        "stream": True,
    },
    "anthropic_messages": {
        "messages": MESSAGES,
        "max_tokens": 9,
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "look"},
        "stream": True,
    },
    "google_generate_content": {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "tools": [{"functionDeclarations": [FUNCTION]}],
        "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA},
    },
}
PATHS = {"google_generate_content": {"model": "m", "method": "streamGenerateContent"}}
CALLED = {"path": "a\r\nb", "lines": [1, {"deep": "é"}]}
INDENTED = json.dumps(CALLED, indent=1)
ANSWER = Answer(
    message=Message(
        "assistant",
        "Two\r\nlines.",
        "Hm,\nhm.",
        [
            ToolCall("c1", FunctionCall("look", INDENTED)),
            ToolCall("c2", FunctionCall("tool_search", INDENTED.replace("\n", "\r\n"))),
            ToolCall("c3", FunctionCall("look", INDENTED.replace("\n", "\r") + "\n")),
        ],
    ),
    finish_reason="tool_calls",
    usage=Usage(10, 5),
    prompt_ids=b"",
    sampled_ids=b"",
    logprobs=b"",
    model="served",
)


@pytest.mark.parametrize("dialect", dialects(), ids=lambda dialect: dialect.name)
def test_an_event_is_one_line_of_data_however_requests_and_arguments_are_indented(dialect: Dialect) -> None:
    path = PATHS.get(dialect.name, {})

    def told(body: bytes, answer: Answer) -> bytes:
        request = dialect.parse(Wire(body, path, {"alt": "sse"}))
        assert request.stream
        return dialect.stream(f"{dialect.id_prefix}0", 17, request, [answer])

    fields = BODIES[dialect.name]
    streamed = told(json.dumps(fields, indent=1).encode(), ANSWER)
    assert all("\n" not in data for _, data in events_of(streamed))
    assert payloads_of(streamed) == payloads_of(told(json.dumps(fields).encode(), ANSWER))


def test_google_and_openai_tell_indented_arguments_parsed() -> None:
    by_name = {dialect.name: dialect for dialect in dialects()}
    google, responses = by_name["google_generate_content"], by_name["openai_responses"]

    body = json.dumps(BODIES[google.name], indent=1).encode()
    asked = google.parse(Wire(body, PATHS[google.name], {"alt": "sse"}))
    streamed = payloads_of(google.stream("gen-0", 17, asked, [ANSWER]))
    array = google.parse(Wire(body, PATHS[google.name]))
    for chunks in (streamed, json.loads(google.body("gen-0", 17, array, [ANSWER]))):
        parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
        assert [part["functionCall"]["args"] for part in parts if "functionCall" in part] == [CALLED] * 3

    asked = responses.parse(Wire(json.dumps(BODIES[responses.name], indent=1).encode()))
    [*_, last] = payloads_of(responses.stream("resp_0", 17, asked, [ANSWER]))
    given = BODIES[responses.name]
    assert {name: last["response"][name] for name in ("tools", "tool_choice")} == {
        name: given[name] for name in ("tools", "tool_choice")
    }
    assert last["response"]["text"]["format"]["schema"] == SCHEMA
    assert [item["arguments"] for item in last["response"]["output"] if item["type"] == "tool_search_call"] == [CALLED]
