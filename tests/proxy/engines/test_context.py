"""The length of a context in what servers answer at `/v1/models`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.engines.context import context_in


@pytest.mark.parametrize(
    ("entry", "context"),
    [
        ({"id": "m", "max_model_len": 32768}, 32768),
        ({"id": "m", "max_model_len": None}, None),
        ({"id": "m"}, None),
        ({"id": "m", "max_model_len": 0}, None),
        ({"id": "m", "max_model_len": -1}, None),
        ({"id": "m", "max_model_len": "32768"}, None),
        ({"id": "other", "max_model_len": 32768}, None),
        ("m", None),
    ],
)
def test_only_a_models_own_positive_number_is_its_length(entry: Any, context: int | None) -> None:
    body = {"object": "list", "data": [{"id": "adapter", "max_model_len": 16}, entry]}
    assert context_in(json.dumps(body).encode(), "m") == context


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"data": null}', b"\xff", b"[" * 10_000])
def test_what_is_no_list_of_models_states_nothing(body: bytes) -> None:
    assert context_in(body, "m") is None
