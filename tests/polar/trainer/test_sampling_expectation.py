"""A rule lets a sample pass only if all that it trains was sampled as the trainer states, and counts what it leaves out once."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer import expect
from polar.trainer.groups import Group, sampling_calls, trained
from tests.polar.trainer.trees import MIXED, groups
from tests.polar.trainer.writing import trajectory
from topics.types.completion import FREE, UNKNOWN, Sampling
from topics.types.errors import InputError
from topics.types.task import TRAINING_DEFAULTS
from topics.types.trajectory import Trajectory

PLAIN = Sampling(**TRAINING_DEFAULTS.model_dump(exclude_none=True), grammar_source=FREE)
COOL = msgspec.structs.replace(PLAIN, temperature=0.7)
OPEN = Sampling()
CHANGED = [
    msgspec.structs.replace(COOL, **changed)
    for changed in (
        {"top_p": 0.9, "truncated": True},
        {"top_k": 8, "truncated": True},
        {"repetition_penalty": 1.3},
        {"logit_bias": {"7": 1.0}},
        {"grammar_source": "response_format", "grammar": True},
        {"grammar_source": UNKNOWN},
        {"top_p": None},
        {"min_p": None},
    )
]
"""Each follows from the model's distribution by more than the temperature, or may do so."""
Mode = Literal["raw", "processed"]


def sample(index: int, sampling: Sampling, mode: str, reward: float | None = 1.0) -> Trajectory:
    made = trajectory("t", index, 4, reward)
    calls = [msgspec.structs.replace(call, sampling=sampling, logprobs_mode=mode) for call in made.calls]
    return msgspec.structs.replace(made, calls=calls)


@pytest.mark.parametrize(
    ("sampling", "mode", "stated", "reason"),
    [
        (PLAIN, "processed", {"temperature": 1.0, "logprobs": "processed"}, None),
        (PLAIN, "raw", {"temperature": 1, "logprobs": "processed"}, None),
        (PLAIN, "unknown", {"logprobs": "raw"}, None),
        (COOL, "processed", {"temperature": 0.7, "logprobs": "processed"}, None),
        (COOL, "processed", {"logprobs": "processed"}, None),
        (COOL, "raw", {"temperature": 0.7}, None),
        (COOL, "processed", {"temperature": 1.0}, "other_temperature"),
        (COOL, "raw", {"temperature": 0.7, "logprobs": "processed"}, "other_logprobs"),
        (COOL, "unknown", {"temperature": 0.7, "logprobs": "processed"}, "unknown_logprobs"),
        (OPEN, "processed", {"temperature": 1.0}, "unknown_temperature"),
        (OPEN, "processed", {"logprobs": "processed"}, None),
        (PLAIN, "unknown", {"otherwise_plain": True}, None),
        (COOL, "processed", {"temperature": 0.7, "otherwise_plain": True}, None),
        *(
            (each, "processed", {"temperature": 0.7, "otherwise_plain": True}, "not_otherwise_plain")
            for each in CHANGED
        ),
    ],
)
def test_a_sample_passes_as_it_was_stated_or_is_counted_with_the_reason(
    sampling: Sampling, mode: str, stated: dict[str, Any], reason: str | None
) -> None:
    counts: Counter[str] = Counter()
    other = sample(1, PLAIN if stated.get("temperature") != 0.7 else COOL, stated.get("logprobs", mode), 0.0)
    group = Group("t", [sample(0, sampling, mode), other])
    passed = expect(**stated)(group, counts)
    if reason is None:
        assert passed is group
        assert not counts
    else:
        assert passed == Group("t", [other])
        assert counts == {f"{reason}_sample": 1}
    counts.clear()
    alone = Group("t", [group.trajectories[0]])
    assert expect(**stated)(alone, counts) is (alone if reason is None else None)
    assert counts == ({} if reason is None else {f"{reason}_group": 1})


def test_how_tokens_without_a_reward_were_sampled_does_not_matter() -> None:
    group = Group("t", [sample(0, PLAIN, "raw"), sample(1, OPEN, "raw", None)])
    assert expect(temperature=1.0)(group, Counter()) is group


@given(groups(temperatures=MIXED), st.sampled_from([1.0, 0.5]))
def test_what_passes_was_sampled_at_that_temperature_and_the_rest_is_counted(group: Group, temperature: float) -> None:
    counts: Counter[str] = Counter()
    passed = expect(temperature=temperature)(group, counts)
    by_reward = any(reward is not None for reward in group.rewards)
    if passed is None:
        assert sum(counts.values()) == 1
        return
    left_out = len(group.trajectories) - len(passed.trajectories)
    assert counts.total() == left_out
    calls = [call for one in passed.trajectories for call in sampling_calls(one, by_reward=by_reward)]
    assert {call.sampling.temperature for call in calls} <= {temperature}
    assert not left_out or any(trained(one, by_reward=by_reward) for one in passed.trajectories)


@pytest.mark.parametrize(
    ("stated", "field"),
    [
        ({}, "expect"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"logprobs": "cooked"}, "logprobs"),
    ],
)
def test_an_expectation_that_nothing_can_meet_is_refused(stated: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as raised:
        expect(**stated)
    assert raised.value.field == field
