"""TRL's rollout dictionary and `RolloutSample`: a completion a slot, one linear row, and one advantage a row; tests/vllm/exporters runs
TRL's own."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies

from polar.trainer.advantages import advantages
from polar.trainer.exporters.trl import rollout_samples, rollouts
from polar.trainer.groups import Group
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import groups, rewarded_tokens
from topics.types.errors import InputError
from topics.types.trajectory import Stats, Trajectory


def test_every_sample_has_its_slot_and_one_without_a_reward_says_none(group: Group) -> None:
    made = rollouts([group], num_generations=3, branches="longest")
    assert made["prompt_ids"] == [[1, 2], [1, 2, 3], [1, 2, 3]]
    assert made["completion_ids"] == [[3, 4, 5, 5, 6], [10, 1], [10, 2]]
    assert made["env_mask"] == [[1, 1, 0, 0, 1], [1, 1], [1, 1]]
    assert made["logprobs"] == [[-0.5, -0.25, 0, 0, -1], [-0.5, -0.25], [-0.5, -0.25]]
    assert made["reward"] == [1.0, 0.0, None]


def test_a_sample_without_tokens_holds_its_slot(group: Group) -> None:
    """An agent that never reached the engine is the commonest sample without a reward."""
    branched, other, failed = group.trajectories
    empty = msgspec.structs.replace(failed, nodes=[], calls=[], traces=[], stats=Stats())
    made = rollouts([Group("t", [empty, branched, other])], num_generations=3, branches="longest")
    assert made["prompt_ids"] == [[1, 2], [1, 2], [1, 2, 3]]
    assert made["completion_ids"] == [[3], [3, 4, 5, 5, 6], [10, 1]]
    assert made["env_mask"] == [[0], [1, 1, 0, 0, 1], [1, 1]]
    assert made["logprobs"][0] == [0.0]
    assert made["reward"] == [None, 1.0, 0.0]
    with pytest.raises(InputError, match="groups: has no tokens to train; leave it out"):
        rollouts([Group("t", [empty])], num_generations=1)


def test_missing_samples_and_groups_without_tokens_keep_their_slots_where_that_is_wanted(group: Group) -> None:
    _, other, failed = group.trajectories
    partial_group = Group("t", [other, failed])
    empty = msgspec.structs.replace(failed, nodes=[], calls=[], traces=[], stats=Stats())
    made = rollouts([partial_group, Group("u", [empty]), Group("v", [])], num_generations=3, fill=True)
    assert made["session_id"] == ["t.0", "t.1", "t.2", "u.0", "u.1", empty.session_id, "v.0", "v.1", "v.2"]
    assert made["completion_ids"] == [[10], [10, 1], [10, 2], *[[0]] * 6]
    assert made["prompt_ids"] == [*[[1, 2, 3]] * 3, *[[0]] * 6]
    assert made["env_mask"] == [[0], [1, 1], [1, 1], *[[0]] * 6]
    assert made["logprobs"] == [[0.0], [-0.5, -0.25], [-0.5, -0.25], *[[0.0]] * 6]
    assert made["reward"] == [None, 0.0, None, *[None] * 6]


@given(groups(), strategies.integers(1, 8))
def test_filled_groups_have_the_size_that_trl_takes_and_train_what_unfilled_ones_do(group: Group, size: int) -> None:
    size += len(group.trajectories)
    group = Group(group.task_id, [one for one in group.trajectories if len(one.traces) < 2])
    made = rollouts([group], num_generations=size, fill=True)
    assert {len(column) for column in made.values()} == {size}
    for ids, mask, logprobs in zip(made["completion_ids"], made["env_mask"], made["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs) > 0
    trained = sum(map(sum, made["env_mask"]))
    alone = [
        rollouts([Group("t", [one])], num_generations=1) for one in group.trajectories if one.stats.trainable_tokens
    ]
    assert trained == sum(sum(row["env_mask"][0]) for row in alone)


def test_a_row_is_of_no_known_version_if_one_of_its_calls_is(unknown: Trajectory) -> None:
    assert [one.model_version for one in rollout_samples(Group("t", [unknown]), group_id=0)] == [6, -1]


def test_what_trl_has_no_place_for_is_refused_by_name(group: Group) -> None:
    with pytest.raises(
        InputError, match=r"groups: has 2 traces, and the trainer takes one: pass branches='longest'.*t\.0"
    ):
        rollouts([group], num_generations=3)
    with pytest.raises(InputError, match="num_generations: t has 3 samples; TRL takes whole groups of one size"):
        rollouts([group], num_generations=4, branches="longest")


def test_rollout_samples_are_all_rows_of_a_conversation(group: Group) -> None:
    side, main, other = rollout_samples(group, group_id=5)
    assert main.input_ids.tolist() == [1, 2, 3, 4, 5, 5, 6]
    assert main.completion_mask.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert main.old_log_probs.tolist() == [0, 0, -0.5, -0.25, 0, 0, -1]
    assert side.input_ids.tolist() == [1, 2, 3, 4, 7, 8]
    assert side.completion_mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert main.advantage == side.advantage == pytest.approx(1, abs=1e-5)
    assert [one.model_version for one in (side, main, other)] == [6, 4, 7]
    assert {one.group_id for one in (side, main, other)} == {5}


def test_calls_with_rewards_of_their_own_are_refused_unless_they_agree(group: Group) -> None:
    mixed, agreed = with_rewards(group, 0.5, None, None), with_rewards(group, None, None, 0.0)
    for export in (
        partial(rollout_samples, mixed, group_id=0),
        partial(rollouts, [mixed], num_generations=3, branches="longest"),
    ):
        with pytest.raises(
            InputError, match=r"groups: its calls have the rewards \[0\.5, 1\.0\], .*: use the rows of polar"
        ):
            export()
    side, main, _ = rollout_samples(agreed, group_id=0)
    assert side.advantage < 0 < main.advantage
    assert [one.metrics["reward"] for one in (side, main)] == [0.0, 1.0]
    own = rollouts([with_rewards(group, 0.5, 0.5, None)], num_generations=3, branches="longest")
    assert own["reward"] == [0.5, 0.0, None]


@given(groups())
def test_arrays_are_aligned_and_each_trained_token_is_in_one_row(group: Group) -> None:
    samples = rollout_samples(group, group_id=0)
    for sample in samples:
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        assert any(sample.completion_mask)
        assert sample.advantage in [np.float32(one) for one in advantages(group.rewards) if one is not None]
    found = [token for sample in samples for token in sample.input_ids[sample.completion_mask == 1].tolist()]
    assert sorted(found) == rewarded_tokens(group)
