"""Tool arguments as models sample them: what is no JSON object that every reader takes stays text, in both forms of an export."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polar.export import atif, inspect_log


def called(arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "shell", "arguments": arguments}}


@pytest.mark.parametrize(
    "sampled",
    [
        r'{"a": "\ud800"}',  # half a character: no file in UTF-8 can hold it
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
        '{"a": NaN}',
        '{"a": ' + "1" * 5000 + "}",
        "[1]",
        "",
    ],
    ids=["surrogate", "deepest", "deep", "nan", "digits", "list", "empty"],
)
def test_arguments_that_no_file_can_hold_stay_text(sampled: str) -> None:
    document = atif._tool_call(called(sampled))
    assert (document["arguments"], document["extra"]) == ({}, {"arguments": sampled})
    logged = inspect_log._tool_call(called(sampled))
    assert (logged["arguments"], "parse_error" in logged) == ({"arguments": sampled}, True)
    for made in (document, logged):
        assert msgspec.json.decode(msgspec.json.encode(made)) == made


def test_arguments_that_are_an_object_are_one() -> None:
    sampled = r'{"a": "\u0000<b>=1", "b": {"c": [1, 123456789012345678901234567890, 0.5, null]}}'
    expected = {"a": "\0<b>=1", "b": {"c": [1, 123456789012345678901234567890, 0.5, None]}}
    assert atif._tool_call(called(sampled))["arguments"] == expected
    assert inspect_log._tool_call(called(sampled))["arguments"] == expected
