"""Requests of harnesses in every dialect, whole, spoilt and spelled otherwise. A parser that refuses everything passes none of these."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat import ChatRequest, FunctionCall, Message, ToolCall
from proxy.dialects.base import Serves, Wire, dialects
from proxy.errors import Refusal, RefusalError
from tests.proxy.dialects.sse import events_of, payloads_of
from tests.proxy.dialects.suite import answer_of
from tests.proxy.fuzz.bodies import CALLS, CallSpec
from tests.proxy.fuzz.mutations import copied, mutated, spelled

DIALECTS = {dialect.name: dialect for dialect in dialects()}
every_call = pytest.mark.parametrize("call", CALLS, ids=str)
CONVERSATION = frozenset(
    {
        *("messages", "input", "instructions", "system", "contents", "systemInstruction", "generateContentRequest"),
        *("tools", "tool_choice", "toolConfig", "previous_response_id", "content", "system_instruction"),
    }
)
"""Fields that decide which messages and tools the model is shown, in any dialect."""
LOOK = ToolCall("c1", FunctionCall("look", json.dumps({"path": "a\r\nb", "lines": [1, {"deep": "é"}]}, indent=1)))
FIND = ToolCall("c2", FunctionCall("tool_search", LOOK.function.arguments.replace("\n", "\r\n")))
LAST = ToolCall("c3", FunctionCall("look", LOOK.function.arguments.replace("\n", "\r") + "\n"))


def parse(call: CallSpec, body: bytes) -> ChatRequest:
    path, _, query = call.target.partition("?")
    model, _, method = path.rpartition("/")[2].partition(":")
    serves = Serves.COUNT if path.endswith(("tokens", "Tokens")) else Serves.CALL
    return DIALECTS[call.dialect].parse(
        Wire(body, {"model": model, "method": method} if method else {}, dict(parse_qsl(query)), serves=serves)
    )


@st.composite
def spoilt_bodies(draw: st.DrawFn, call: CallSpec) -> Any:
    return mutated(draw, copied(call.body))


def parsed_or_refused(call: CallSpec, body: bytes) -> ChatRequest | RefusalError:
    try:
        return parse(call, body)
    except RefusalError as error:
        return error


def shown(request: ChatRequest) -> tuple[list[Message], list[str]]:
    return request.messages, [tool.function.name for tool in request.tools]


@every_call
@settings(max_examples=80)
@given(data=st.data())
def test_a_spoilt_request_is_read_or_refused_and_the_whole_one_read(call: CallSpec, data: st.DataObject) -> None:
    whole = shown(parse(call, json.dumps(call.body).encode()))
    assert (" ".join(message.role for message in whole[0]), " ".join(whole[1])) == (call.roles, call.tools)
    body = data.draw(spoilt_bodies(call))
    spoilt = parsed_or_refused(call, spelled(body, ascii_only=False).encode("utf-8", "surrogatepass"))
    if isinstance(spoilt, RefusalError):
        assert spoilt.refusal is Refusal.INVALID
        assert spoilt.message.startswith((spoilt.field or "")[:900])
    elif isinstance(body, dict) and all(body.get(name) == call.body.get(name) for name in CONVERSATION):
        assert shown(spoilt) == whole


@every_call
@given(body=st.binary(max_size=200), cut=st.floats(0, 1, exclude_max=True))
def test_bytes_that_are_no_request_are_refused_and_no_other_error_is_raised(
    call: CallSpec, body: bytes, cut: float
) -> None:
    whole = json.dumps(call.body).encode()
    assert len(parse(call, whole).messages) == len(call.roles.split())
    for spoilt in (body, whole[: int(len(whole) * cut)]):
        with pytest.raises(RefusalError):
            parse(call, spoilt)


@every_call
def test_an_event_is_one_line_of_data_however_requests_and_arguments_are_indented(call: CallSpec) -> None:
    dialect = DIALECTS[call.dialect]
    answer = answer_of(Message("assistant", "Two\r\nlines.", "Hm,\nhm.", [LOOK, FIND, LAST]), "tool_calls")

    def stream(indent: int | None) -> bytes:
        request = parse(call, json.dumps(call.body, indent=indent).encode())
        return dialect.stream(f"{dialect.id_prefix}0", 17, request, [answer])

    assert all("\n" not in data for _, data in events_of(stream(1)))
    assert payloads_of(stream(1)) == payloads_of(stream(None))


@every_call
def test_text_that_was_cut_within_an_emoji_is_read(call: CallSpec) -> None:
    """As Node's `JSON.stringify` writes it."""
    body = json.dumps(call.body).encode()
    cut = json.dumps(call.body | {"metadata": {"user_id": "\ud83d"}}).encode()
    assert b"\\ud83d" in cut
    assert shown(parse(call, cut)) == shown(parse(call, body))


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "anthropic_messages"])
def test_a_client_may_leave_out_the_version(name: str) -> None:
    """The AI SDK's and opencode's Anthropic providers post to `{baseURL}/messages`."""
    routes = {(route.method, route.path): route.serves for route in DIALECTS[name].routes}
    below = {at: serves for at, serves in routes.items() if at[1].startswith("/v1/")}
    assert Serves.CALL in below.values()
    assert below == {
        (method, "/v1" + path): routes.get((method, path))
        for method, path in ((method, path.removeprefix("/v1")) for method, path in below)
    }
