"""verl's `AgentLoopOutput` and `DataProto`: the padding, the masks, and where the reward stands; tests/vllm/exporters runs verl's own."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.exporters.verl import agent_loop_outputs, data_proto
from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import groups
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory

FIELDS = {
    "prompt_ids", "response_ids", "response_mask", "response_logprobs", "routed_experts", "multi_modal_data", "reward_score",
    "num_turns", "metrics", "extra_fields", "mm_processor_kwargs", "mm_processor_output",
}  # fmt: skip
PAD = 99_999
WIDE = 32


def test_a_branched_rollout_is_two_outputs_and_the_longest_is_the_last(group: Group) -> None:
    branched, _, unjudged = group.trajectories
    side, main = agent_loop_outputs(branched)
    assert (main["prompt_ids"], main["response_ids"]) == ([1, 2], [3, 4, 5, 5, 6])
    assert main["response_mask"] == [1, 1, 0, 0, 1]
    assert main["response_logprobs"] == [-0.5, -0.25, 0, 0, -1]
    assert (main["reward_score"], main["num_turns"]) == (1.0, 4)
    assert main["metrics"]["generate_sequences"] == 4.0
    assert (main["extra_fields"]["min_global_steps"], main["extra_fields"]["max_global_steps"]) == (4, 5)
    assert (side["prompt_ids"], side["response_ids"]) == ([1, 2, 3, 4, 7], [8])
    assert agent_loop_outputs(unjudged) == []


def test_a_batch_is_padded_left_and_right(group: Group) -> None:
    made = data_proto([group], prompt_length=6, response_length=5, pad_token_id=0)
    assert made.batch["prompts"].tolist() == [[0, 1, 2, 3, 4, 7], [0, 0, 0, 0, 1, 2], [0, 0, 0, 1, 2, 3]]
    assert made.batch["responses"].tolist() == [[8, 0, 0, 0, 0], [3, 4, 5, 5, 6], [10, 1, 0, 0, 0]]
    assert made.batch["response_mask"].tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 1], [1, 1, 0, 0, 0]]
    assert made.batch["rm_scores"].tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert made.batch["attention_mask"][1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert made.batch["position_ids"][0].tolist() == [0, 0, 1, 2, 3, 4, 5, 5, 5, 5, 5]
    assert made.non_tensor_batch["uid"].tolist() == ["t"] * 3
    assert made.non_tensor_batch["__num_turns__"].tolist() == [2, 4, 2]
    assert made.non_tensor_batch["max_global_steps"].tolist() == [6, 5, 7]


def test_calls_with_rewards_of_their_own_need_advantages_per_token(group: Group) -> None:
    """verl gives all outputs of an agent loop the reward of the last."""
    mixed = with_rewards(group, None, None, 0.0)
    with pytest.raises(InputError, match=r"groups: its calls have the rewards \[0\.0, 1\.0\], .*: use data_proto"):
        agent_loop_outputs(mixed.trajectories[0])
    agreed = with_rewards(group, 0.5, 0.5, 0.5)
    assert [one["reward_score"] for one in agent_loop_outputs(agreed.trajectories[0])] == [0.5, 0.5]
    made = data_proto([mixed], prompt_length=6, response_length=5, pad_token_id=0)
    side, main, _ = made.batch["advantages"].tolist()
    assert side[0] < 0 < main[0] == main[1] == main[4]


@given(groups())
def test_outputs_have_what_a_rollout_s_last_one_is_asked_for(group: Group) -> None:
    for one in group.trajectories:
        outputs = agent_loop_outputs(one, unknown_version=0)
        for output in outputs:
            assert output.keys() <= FIELDS
            lengths = {len(output[name]) for name in ("response_ids", "response_mask", "response_logprobs")}
            assert len(lengths) == 1
            assert output["response_mask"][0] == 1
            assert output["extra_fields"]["reward_extra_info"] == {}
        sizes = [len(output["prompt_ids"]) + len(output["response_ids"]) for output in outputs]
        assert sizes == sorted(sizes)


@given(groups(rewards=st.sampled_from([0.0, 0.5, 1.0])))
def test_a_batch_says_what_the_rows_do(group: Group) -> None:
    rows = {(row.session_id, row.token_ids.tobytes()): row for row in grpo(group)}
    if not rows:
        with pytest.raises(InputError, match="groups: no session has a reward and tokens to train"):
            data_proto([group], prompt_length=WIDE, response_length=WIDE, pad_token_id=PAD, unknown_version=0)
        return
    made = data_proto([group], prompt_length=WIDE, response_length=WIDE, pad_token_id=PAD, unknown_version=0)
    assert {len(array) for array in (*made.batch.values(), *made.non_tensor_batch.values())} == {len(rows)}
    for index, session_id in enumerate(made.non_tensor_batch["session_id"]):
        real = made.batch["attention_mask"][index] == 1
        ids = made.batch["input_ids"][index][real]
        row = rows[session_id, ids.astype(np.int32).tobytes()]
        assert (made.batch["input_ids"][index][~real] == PAD).all()
        padded = np.zeros((4, 2 * WIDE))
        for wide, name in zip(padded, ("response_mask", "rollout_log_probs", "advantages", "returns"), strict=True):
            wide[WIDE:] = made.batch[name][index]
        mask, logprobs, advantages, returns = padded[:, real]
        assert mask.tolist() == row.loss_mask.tolist()
        assert logprobs.tolist() == row.logprobs.tolist()
        assert advantages.tolist() == returns.tolist() == row.advantages.tolist()
        assert (made.batch["position_ids"][index][real] == np.arange(len(row))).all()


def test_a_version_that_nobody_knows_is_refused_or_what_the_caller_says(unknown: Trajectory) -> None:
    """verl makes integers of them at each step. One of a row's calls is enough."""
    with pytest.raises(InputError, match=r"policy_version: t\.0: its policy version is unknown; publish"):
        agent_loop_outputs(unknown)
    _, main = agent_loop_outputs(unknown, unknown_version=3)
    assert (main["extra_fields"]["min_global_steps"], main["extra_fields"]["max_global_steps"]) == (3, 3)
    batch = Group("t", [unknown])
    made = partial(data_proto, [batch], prompt_length=WIDE, response_length=WIDE, pad_token_id=PAD)
    with pytest.raises(InputError, match="policy_version"):
        made()
    assert made(unknown_version=3).non_tensor_batch["min_global_steps"].tolist() == [6, 3]


def test_what_is_too_long_is_refused_by_name(group: Group) -> None:
    with pytest.raises(InputError, match=r"prompt_length: t\.0, trace 1, has 5 tokens there"):
        data_proto([group], prompt_length=4, response_length=9, pad_token_id=0)
    with pytest.raises(InputError, match=r"response_length: t\.0, trace 0, has 5 tokens there"):
        data_proto([group], prompt_length=9, response_length=4, pad_token_id=0)
