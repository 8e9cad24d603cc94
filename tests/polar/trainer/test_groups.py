"""What rules keep and drop, and that what they drop is counted."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from polar.trainer.groups import Group, GroupDeadline, drop_zero_advantage, enough, group_deadline
from tests.polar.trainer.writing import trajectory
from topics.types.errors import InputError
from topics.types.trajectory import Stats


def of(*rewards: float | None) -> Group:
    return Group("t", [trajectory("t", index, len(rewards), reward) for index, reward in enumerate(rewards)])


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.0,), (0.5, None), (None, None)])
def test_a_group_of_equal_rewards_is_dropped_and_counted(rewards: tuple[float | None, ...]) -> None:
    counts: Counter[str] = Counter()
    assert drop_zero_advantage(of(*rewards), counts) is None
    assert counts == {"zero_advantage": 1}


def test_a_group_with_any_difference_is_kept_as_it_is() -> None:
    counts: Counter[str] = Counter()
    group = of(1.0, None, 0.0)
    assert drop_zero_advantage(group, counts) is group
    assert not counts


def test_rewards_of_single_calls_are_a_difference_too() -> None:
    one = trajectory("t", 0, 1, 1.0)
    judged = msgspec.structs.replace(one, calls=[msgspec.structs.replace(one.calls[0], reward=0.0)])
    assert drop_zero_advantage(Group("t", [judged]), Counter()) is not None


def test_a_sample_without_a_reward_or_without_tokens_to_train_is_not_usable() -> None:
    counts: Counter[str] = Counter()
    whole = trajectory("t", 2, 4)
    empty = msgspec.structs.replace(whole, traces=[], stats=Stats())
    uncredited = msgspec.structs.replace(whole, traces=[msgspec.structs.replace(whole.traces[0], reward=None)])
    group = Group("t", [*of(1.0, None).trajectories, empty, uncredited])
    assert enough(1)(group, counts) is group
    assert enough(2)(group, counts) is None
    assert counts == {"too_few_usable": 1}


def test_patience_is_a_number_of_samples_by_a_deadline() -> None:
    assert group_deadline(None, None) is group_deadline(3, None) is None
    assert group_deadline(3, 0.5) == GroupDeadline(3, 500)


@pytest.mark.parametrize(
    ("at_least", "within_s", "field"), [(0, None, "at_least"), (1, -1.0, "within_s"), (None, 1.0, "within_s")]
)
def test_a_deadline_that_says_nothing_is_refused(at_least: int | None, within_s: float | None, field: str) -> None:
    with pytest.raises(InputError) as raised:
        group_deadline(at_least, within_s)
    assert raised.value.field == field
