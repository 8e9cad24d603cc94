"""Advantages: whatever the order, they sum to zero, and what has no reward changes none of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from polar.trainer.advantages import EPSILON, advantages, baselines

KNOWN = st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-100, 100)), min_size=1, max_size=8)
OPTIONS = st.fixed_dictionaries({"by_deviation": st.booleans(), "leave_one_out": st.booleans()})


@given(KNOWN, OPTIONS, st.randoms())
def test_the_order_changes_nothing_to_the_last_bit(
    rewards: list[float], options: dict[str, bool], random: object
) -> None:
    shuffled = list(enumerate(rewards))
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis' own Random
    found = advantages([reward for _, reward in shuffled], **options)
    there = dict(zip([index for index, _ in shuffled], found, strict=True))
    assert [there[index] for index in range(len(rewards))] == advantages(rewards, **options)


@given(KNOWN, OPTIONS)
def test_they_sum_to_zero(rewards: list[float], options: dict[str, bool]) -> None:
    found = advantages(rewards, **options)
    size = sum(abs(one) for one in found if one is not None)
    assert sum(one for one in found if one is not None) == pytest.approx(0, abs=1e-7 * max(1.0, size))


@given(st.lists(st.one_of(st.none(), st.floats(-100, 100)), max_size=8), OPTIONS)
def test_what_has_no_reward_has_no_advantage_and_changes_none(
    rewards: list[float | None], options: dict[str, bool]
) -> None:
    known = [reward for reward in rewards if reward is not None]
    found = advantages(rewards, **options)
    assert [one for one in found if one is not None] == advantages(known, **options)
    assert [one is None for one in found] == [reward is None for reward in rewards]


@given(st.floats(-100, 100), st.integers(1, 8), OPTIONS)
def test_equal_rewards_give_exactly_zero(reward: float, samples: int, options: dict[str, bool]) -> None:
    assert advantages([reward] * samples, **options) == [0.0] * samples


@given(KNOWN)
def test_left_out_of_its_own_baseline_an_advantage_is_larger_by_one_sample(rewards: list[float]) -> None:
    assume(len(rewards) > 1)
    n = len(rewards)
    plain = advantages(rewards, by_deviation=False)
    others = advantages(rewards, by_deviation=False, leave_one_out=True)
    for a, b in zip(plain, others, strict=True):
        assert a is not None
        assert b is not None
        assert math.isclose(b, a * n / (n - 1), rel_tol=1e-6, abs_tol=1e-9)


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.floats(-1, 1)), st.lists(st.floats(-1, 1), max_size=3)),
        min_size=1,
        max_size=8,
    )
)
def test_no_advantage_of_a_call_explodes(group: list[tuple[float | None, list[float]]]) -> None:
    """Also where sessions are next to equal, and one call isn't."""
    rewards, of_calls = [reward for reward, _ in group], [calls for _, calls in group]
    for baseline, reward, calls in zip(baselines(rewards, of_calls=of_calls), rewards, of_calls, strict=True):
        if baseline is None:
            continue
        assert reward is not None
        bound = math.sqrt(len(group) * (1 + len(calls)))
        assert all(abs(baseline.advantage(one)) <= bound + 1e-6 for one in (reward, *calls))


def test_calls_that_are_judged_like_their_session_change_nothing() -> None:
    assert baselines([1.0, 0.0], of_calls=[[1.0, 1.0], []]) == baselines([1.0, 0.0])


def test_they_are_grpo_s() -> None:
    rewards = np.array([1.0, 0.0, 0.0, 0.5])
    wanted = (rewards - rewards.mean()) / (rewards.std() + EPSILON)
    assert advantages([1.0, 0.0, 0.0, 0.5]) == pytest.approx(wanted.tolist())
    assert advantages([1.0, 0.0, None], by_deviation=False) == [0.5, -0.5, None]


def test_no_rewards_have_no_baseline() -> None:
    assert baselines([None, None]) == [None, None]
    assert baselines([]) == []
