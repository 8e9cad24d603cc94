"""slime's `Sample`: what its loss, its reward post-processing and its rollout checks rely on.

No package index has slime. Fields, statuses and checks are from its files at 624b824a8: `slime/utils/types.py` (`Sample`,
`_validate_response_metadata_lengths`), `slime/ray/rollout.py` (`_convert_samples_to_train_data`).
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from polar.trainer.advantages import advantages
from polar.trainer.exporters.slime import samples
from polar.trainer.groups import Group
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import groups, rewarded_tokens
from topics.types.errors import InputError

FIELDS = {
    "group_index", "index", "rollout_id", "prompt", "tokens", "multimodal_inputs", "multimodal_train_inputs",
    "multimodal_train_input_id", "apply_chat_template_kwargs", "response", "response_length", "label", "reward", "loss_mask",
    "weight_versions", "rollout_log_probs", "rollout_top_p_token_ids", "rollout_top_p_token_offsets",
    "rollout_routed_experts", "remove_sample", "teacher_log_probs", "status", "metadata", "generate_function_path",
    "custom_rm_path", "train_metadata", "session_id", "non_generation_time", "spec_info", "prefix_cache_info",
}  # fmt: skip
STATUSES = {"pending", "completed", "truncated", "aborted", "failed"}


def test_a_branched_rollout_is_two_samples_of_one_rollout_id(group: Group) -> None:
    branched, other = samples(group, group_index=3, first_index=40)
    side, main = branched
    assert (main["tokens"], main["response_length"]) == ([1, 2, 3, 4, 5, 5, 6], 5)
    assert main["loss_mask"] == [1, 1, 0, 0, 1]
    assert main["rollout_log_probs"] == [-0.5, -0.25, 0, 0, -1]
    assert main["weight_versions"] == ["4", "5"]
    assert (side["tokens"], side["response_length"], side["loss_mask"]) == ([1, 2, 3, 4, 7, 8], 1, [1])
    assert [one["rollout_id"] for one in (*branched, *other)] == [40, 40, 41]
    assert {one["group_index"] for one in (*branched, *other)} == {3}
    assert main["metadata"] == {"set": "train", "session_id": "t.0", "task_id": "t", "trace": 0, "raw_reward": 1.0}


def test_with_advantages_the_reward_is_the_rollout_s_and_the_raw_one_stands_beside_it(group: Group) -> None:
    branched, other = samples(group, group_index=0, first_index=0, advantages=advantages(group.rewards))
    assert [one["reward"] for one in branched] == pytest.approx([1, 1], abs=1e-5)
    assert [one["metadata"]["raw_reward"] for one in (*branched, *other)] == [1.0, 1.0, 0.0]


def test_a_rollout_that_is_given_no_advantage_is_left_out(group: Group) -> None:
    """Its raw reward stands for none among advantages."""
    found = samples(group, group_index=0, first_index=0, advantages=[None, 0.5, None])
    assert [[one["reward"] for one in rollout] for rollout in found] == [[0.5]]


def test_a_sample_has_the_reward_of_its_calls_if_they_agree(group: Group) -> None:
    [side, main], _ = samples(with_rewards(group, 0.5, 0.5, 0.25), group_index=0, first_index=0)
    assert [one["reward"] for one in (side, main)] == [0.25, 0.5]
    assert [one["metadata"]["raw_reward"] for one in (side, main)] == [1.0, 1.0]
    mixed = with_rewards(group, 0.5, None, None)
    with pytest.raises(
        InputError, match=r"groups: its calls have the rewards \[0\.5, 1\.0\], .*: build with per_request"
    ):
        samples(mixed, group_index=0, first_index=0)


def test_an_advantage_of_the_session_is_no_call_s(group: Group) -> None:
    own = with_rewards(group, None, None, 0.25)
    with pytest.raises(
        InputError, match=r"groups: its calls have the reward 0\.25 of their own, and advantages has one"
    ):
        samples(own, group_index=0, first_index=0, advantages=advantages(own.rewards))


@given(groups())
def test_what_slime_checks_holds(group: Group) -> None:
    rollouts = samples(group, group_index=0, first_index=7)
    for rollout in rollouts:
        assert len({one["rollout_id"] for one in rollout}) == 1
        for one in rollout:
            assert one.keys() <= FIELDS
            assert one["status"] in STATUSES
            assert len(one["loss_mask"]) == len(one["rollout_log_probs"]) == one["response_length"]
            assert 0 < one["response_length"] < len(one["tokens"])
            assert any(one["loss_mask"])
            assert not any(lp for lp, mask in zip(one["rollout_log_probs"], one["loss_mask"], strict=True) if not mask)
            assert isinstance(one["reward"], float)
            assert json.loads(json.dumps(one)) == one
    assert len({rollout[0]["rollout_id"] for rollout in rollouts}) == len(rollouts)


@given(groups())
def test_every_trained_token_of_a_session_with_a_reward_is_in_one_sample(group: Group) -> None:
    found = [
        token
        for rollout in samples(group, group_index=0, first_index=0)
        for one in rollout
        for token, mask in zip(one["tokens"][-one["response_length"] :], one["loss_mask"], strict=True)
        if mask
    ]
    assert sorted(found) == rewarded_tokens(group)
