"""The script of docs/ratios.md, held to distributions that are computed by hand; `tests/vllm/test_ratios.py` holds it to vLLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.reproduce_logprobs import differences, is_reproducible, reproduced

OWN = np.log([[0.5, 0.25, 0.15, 0.1]])
NEUTRAL = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "repetition_penalty": 1.0, "grammar_source": "none",
}  # fmt: skip


def call(mode: str = "processed", *, plain: bool = False, has_media: bool = False, **sampling: Any) -> dict[str, Any]:
    """As a line of `polar trajectories` has it; a setting of None is left out there."""
    settings = {name: value for name, value in (NEUTRAL | sampling).items() if value is not None}
    place = {"start": 0, "end": 1}
    return {"sampling": settings, "logprobs_mode": mode, "plain": plain, "has_media": has_media} | place


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.5}, np.array([0.25, 0.0625, 0.0225, 0.01]) / 0.345),
        ({"temperature": 0.0, "top_k": 1}, [0.5, 0.25, 0.15, 0.1]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.7}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.8}, [5 / 9, 2.5 / 9, 1.5 / 9, 0]),
        ({"top_p": 0.01}, [1, 0, 0, 0]),
        ({"min_p": 0.4}, [2 / 3, 1 / 3, 0, 0]),
        ({"min_p": 0.25, "top_k": 3, "top_p": 0.8}, [2 / 3, 1 / 3, 0, 0]),
    ],
)
def test_processed_logprobs_are_those_of_what_is_left(sampling: dict[str, Any], expected: list[float]) -> None:
    assert np.exp(reproduced(OWN, call(**sampling))) == pytest.approx(np.array([expected]))
    assert np.exp(reproduced(OWN, call("raw", **sampling))) == pytest.approx(np.exp(OWN)), "raw is before all of it"


def test_a_difference_is_of_the_token_that_was_sampled() -> None:
    trace = {"token_ids": [1], "logprobs": [float(np.log(1 / 3))]}
    assert differences(OWN, trace, call(top_k=2)) == pytest.approx([0.0])


@pytest.mark.parametrize(
    ("made", "known"),
    [
        (call("unknown", plain=True), True),
        (call("unknown", temperature=0.7), False),
        (call("processed", temperature=0.7, top_p=0.9), True),
        (call("processed", top_k=None), False),
        (call("processed", presence_penalty=0.5), False),
        (call("processed", repetition_penalty=None), False),
        (call("processed", logit_bias={"5": 1.0}), False),
        (call("raw", top_k=None, presence_penalty=0.5), True),
        (call("raw", grammar_source="strict_tools"), False),
        (call("raw", grammar_source=None), False),
        (call("processed", plain=True, has_media=True), False),
    ],
)
def test_a_record_says_whether_it_suffices(made: dict[str, Any], known: bool) -> None:
    assert is_reproducible(made) is known
