"""What is recorded of a call's sampling before the engine answers: the key's settings, and where a grammar comes from."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxy.chat import ChatRequest, ForcedTool, Function, Message, NamedFunction, Tool
from proxy.intake import imposed
from topics.environment.keys import KeyClaims
from topics.types.completion import Sampling
from topics.types.task import TRAINING_DEFAULTS

FREE_TOOL, STRICT_TOOL = Tool(Function("look")), Tool(Function("look", strict=True))
FORMAT = msgspec.Raw(b'{"type":"json_object"}')
TRAIN: dict[str, Any] = TRAINING_DEFAULTS.model_dump(exclude_none=True)


def recorded(unasked_grammar: bool | None = None, sampling: dict[str, Any] = TRAIN, **fields: Any) -> Sampling:
    key = KeyClaims("t.0", 1, "c1", issued_at=0, expires_at=9, namespace="polar", sampling=sampling)
    return imposed(ChatRequest([Message("user", "hi")], **fields), key, unasked_grammar).sampling


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"response_format": FORMAT}, "response_format"),
        ({"response_format": FORMAT, "tools": [STRICT_TOOL]}, "response_format"),
        ({"tools": [FREE_TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FREE_TOOL], "tool_choice": ForcedTool(NamedFunction("look"))}, "tool_choice"),
        ({"tools": [FREE_TOOL, STRICT_TOOL]}, "strict_tools"),
        ({"tools": [FREE_TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
@pytest.mark.parametrize("unasked_grammar", [None, False, True])
def test_a_grammar_that_a_request_asks_for_is_recorded_with_its_source(
    fields: dict[str, Any], source: str, unasked_grammar: bool | None
) -> None:
    found = recorded(unasked_grammar, **fields)
    assert (found.grammar, found.grammar_source, found.plain) == (True, source, False)


@pytest.mark.parametrize(
    ("fields", "sources"),
    [
        ({"tools": [FREE_TOOL]}, ("unknown", "none", "engine")),
        ({"tools": [FREE_TOOL], "parallel_tool_calls": True}, ("unknown", "none", "engine")),
        ({"tools": [STRICT_TOOL], "tool_choice": "none"}, ("unknown", "none", "unknown")),
        ({"parallel_tool_calls": False}, ("unknown", "none", "unknown")),
        ({}, ("unknown", "none", "unknown")),
    ],
)
def test_without_one_it_is_what_the_engine_is_known_to_do(fields: dict[str, Any], sources: tuple[str, ...]) -> None:
    for unasked_grammar, source in zip((None, False, True), sources, strict=True):
        found = recorded(unasked_grammar, **fields)
        assert (found.grammar, found.grammar_source) == (source == "engine", source)
        assert found.plain is (source == "none")


def test_what_neither_key_nor_harness_sets_stays_unknown() -> None:
    key = KeyClaims("t.0", 1, "c1", issued_at=0, expires_at=9, namespace="polar")
    request = ChatRequest([Message("user", "hi")], sampling=Sampling(temperature=1.0), stop=["END"])
    found = imposed(request, key, unasked_grammar=False).sampling
    assert (found.temperature, found.top_p, found.truncated, found.stop) == (1.0, None, False, ["END"])
    assert not found.plain


def test_a_truncation_is_told_by_the_settings_that_hold() -> None:
    assert recorded(sampling={"top_p": 0.9}).truncated
    assert not recorded(sampling=TRAIN).truncated
