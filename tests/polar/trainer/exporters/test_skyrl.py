"""SkyRL's `GeneratorOutput`: what `validate_generator_output` asks of step-wise rows; tests/vllm/exporters runs SkyRL's own."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.exporters.skyrl import generator_output
from polar.trainer.groups import Group
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import groups
from topics.types.errors import InputError

KEYS = {
    "prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics", "rollout_logprobs",
    "trajectory_ids", "trajectory_generation_times", "trajectory_time_splits", "rollout_expert_indices", "is_last_step",
    "env_metrics", "pixel_values", "image_grid_thw",
}  # fmt: skip
OF_ROWS = [
    "prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs", "trajectory_ids", "is_last_step",
]  # fmt: skip


def test_a_branched_rollout_is_two_steps_and_the_longest_the_last(group: Group) -> None:
    made = generator_output([group])
    assert [one.to_string() for one in made["trajectory_ids"]] == ["t_0", "t_0", "t_1"]
    assert made["is_last_step"] == [False, True, True]
    assert made["rewards"] == [0.0, 1.0, 0.0]
    assert made["prompt_token_ids"] == [[1, 2, 3, 4, 7], [1, 2], [1, 2, 3]]
    assert made["response_ids"] == [[8], [3, 4, 5, 5, 6], [10, 1]]
    assert made["loss_masks"] == [[1], [1, 1, 0, 0, 1], [1, 1]]


def test_calls_with_rewards_of_their_own_are_refused_unless_they_agree(group: Group) -> None:
    """SkyRL adds the rewards of the last row up, and gives the other rows its advantage."""
    with pytest.raises(InputError, match=r"groups: its calls have the rewards \[0\.0, 1\.0\], .* \(got 't\.0'\)"):
        generator_output([with_rewards(group, None, None, 0.0)])
    assert generator_output([with_rewards(group, 0.5, 0.5, 0.5)])["rewards"] == [0.0, 0.5, 0.0]


def renamed(group: Group, task_id: str) -> Group:
    return Group(task_id, [msgspec.structs.replace(one, task_id=task_id) for one in group.trajectories])


@given(st.lists(groups(), max_size=3))
def test_what_skyrl_validates_holds(found: list[Group]) -> None:
    made = generator_output([renamed(one, f"t{number}") for number, one in enumerate(found)])
    assert made.keys() == KEYS
    rows = len(made["response_ids"])
    assert {len(made[name]) for name in OF_ROWS} == {rows}
    for ids, mask, logprobs in zip(made["response_ids"], made["loss_masks"], made["rollout_logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs)
        assert any(mask)
    names = [(one.instance_id, one.repetition_id) for one in made["trajectory_ids"]]
    last = [index + 1 == rows or names[index + 1] != names[index] for index in range(rows)]
    assert made["is_last_step"] == last
    assert len(set(names)) == sum(last), "a trajectory's rows stand together"
    assert all(reward == 0.0 or is_last for reward, is_last in zip(made["rewards"], last, strict=True))
