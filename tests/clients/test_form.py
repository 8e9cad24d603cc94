"""The form of what a client sends depends on no value, and tells which fields came and went."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clients import form
from tests.clients.trials import TRIALS

NAMES = st.sampled_from(["model", "messages", "content", "arguments", "parameters", "metadata", "text", "an id: 17"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
INSIDE = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3), max_leaves=8
)
BODIES = st.dictionaries(NAMES, INSIDE, max_size=4)


def request(body: Any, path: str = "/v1/chat/completions", **headers: str) -> dict[str, Any]:
    return {"method": "POST", "path": path, "headers": headers, "body": body}


def lines(body: Any) -> list[str]:
    (found,) = form.form([request(body)]).values()
    return found


@st.composite
def said_otherwise(draw: st.DrawFn, body: Any) -> Any:
    """`body` with other scalars, longer lists, and maps of tools' authors of any content."""
    match body:
        case dict():
            return {
                name: draw(st.dictionaries(st.text(), SCALARS, max_size=2))
                if name in form.FREE and isinstance(each, dict)
                else draw(said_otherwise(each))
                for name, each in body.items()
            }
        case list():
            return [draw(said_otherwise(each)) for each in body * draw(st.integers(1, 3))]
        case _:
            return draw(SCALARS)


@settings(max_examples=50)
@given(st.data())
def test_values_and_lengths_do_not_show(data: st.DataObject) -> None:
    body = data.draw(BODIES)
    assert lines(data.draw(said_otherwise(body))) == lines(body)


@settings(max_examples=50)
@given(BODIES, BODIES)
def test_differences_lead_from_one_form_to_the_other(before: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = lines(before), lines(now)
    told = form.differences({"POST /": old}, {"POST /": new})
    came = {line[2:] for line in told if line.startswith("+ ")}
    went = {line[2:] for line in told if line.startswith("- ")}
    assert (set(old) | came) - went == set(new)
    assert not came & set(old)
    assert bool(told) == (old != new)


def test_fields_stand_as_paths_with_the_words_of_the_dialect_alone() -> None:
    body = {
        "model": "any",
        "stream": True,
        "tool_choice": "auto",
        "stop": [],
        "messages": [
            {"role": "system", "content": "You work in /home/me."},
            {"role": "user", "content": [{"type": "text", "text": "Mend it."}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"arguments": '{"a": 1}'}}],
            },
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}],
    }
    assert lines(body) == [
        "messages[].content",
        "messages[].content[].text",
        "messages[].content[].type=text",
        "messages[].role=assistant",
        "messages[].role=system",
        "messages[].role=user",
        "messages[].tool_calls[].function.arguments",
        "messages[].tool_calls[].id",
        "messages[].tool_calls[].type=function",
        "model",
        "stop",
        "stream=true",
        "tool_choice=auto",
        "tools[].function.name",
        "tools[].function.parameters",
        "tools[].type=function",
    ]


def test_a_word_of_the_dialect_is_short() -> None:
    assert lines({"status": "It went well, I think", "type": "a" * 41}) == ["status", "type"]


def test_ids_versions_and_keys_in_paths_and_headers_do_not_show() -> None:
    headers = {"User-Agent": "codex_exec/0.169.0 (linux; x86_64) node/24", "Session_Id": "0199-aa"}
    got = request(None, "/v1/responses/resp_0123456789?key=sk-secret&alt=sse", **headers)
    assert form.form([got]) == {
        "POST /v1/responses/*?alt&key": ["header session_id", "user-agent codex_exec/* (*; *) node/*"]
    }


def test_a_changed_client_is_told_by_path_and_line() -> None:
    before = {"POST /a": ["model", "store"], "POST /b": ["model"], "POST /c": ["model"]}
    now = {"POST /a": ["messages[].reasoning_content", "model"], "POST /b": ["model"], "GET /d": []}
    assert form.differences(before, now) == [
        "+ GET /d",
        "POST /a",
        "+ messages[].reasoning_content",
        "- store",
        "- POST /c",
    ]


def test_each_recording_is_of_a_trial_and_as_it_would_be_written() -> None:
    files = sorted(form.RECORDINGS.glob("*.json"))
    assert files
    assert {file.stem for file in files} <= {str(trial) for trial in TRIALS}
    for file in files:
        recorded = form.read(file.stem)
        assert recorded is not None
        assert recorded.text == file.read_text()
        assert all(calls == sorted(set(calls)) for calls in recorded.calls.values())
