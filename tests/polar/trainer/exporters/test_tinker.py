"""Tinker's `Datum`: targets are the tokens that follow the input, and everything else is theirs.

tests/vllm/tinker_api gives the datums to SkyRL's server of Tinker's API.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.exporters.tinker import datums
from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import groups, rewarded_tokens
from topics.types.completion import Sampling
from topics.types.errors import InputError


def test_a_branched_rollout_is_two_datums_and_one_without_a_reward_is_none(group: Group) -> None:
    main, side, other = datums([group])
    assert [(one.session_id, one.trace) for one in (main, side, other)] == [("t.0", 0), ("t.0", 1), ("t.1", 0)]
    # [1 2] (3 4) [5 5] (6)
    assert main.tokens == [1, 2, 3, 4, 5, 5]
    assert main.loss_fn_inputs["target_tokens"].tolist() == [2, 3, 4, 5, 5, 6]
    assert main.mask.tolist() == [0, 1, 1, 0, 0, 1]
    assert main.loss_fn_inputs["logprobs"].tolist() == [0, -0.5, -0.25, 0, 0, -1]
    assert main.loss_fn_inputs["advantages"] == pytest.approx([0, 1, 1, 0, 0, 1], abs=1e-5)
    assert side.mask.tolist() == [0, 0, 0, 0, 1], "what both hold is trained in the first"
    assert other.loss_fn_inputs["advantages"].max() == 0
    assert {name: array.dtype.name for name, array in main.loss_fn_inputs.items()} == {
        "target_tokens": "int64",
        "logprobs": "float32",
        "advantages": "float32",
    }


@given(st.lists(groups(), max_size=3))
def test_each_rewarded_token_is_the_target_of_one_datum_and_nothing_else_weighs(batch: list[Group]) -> None:
    made = datums(batch)
    rows = [row for group in batch for row in grpo(group)]
    assert sum(int(one.trained.sum()) for one in made) == sum(len(rewarded_tokens(group)) for group in batch)
    for one, row in zip(made, rows, strict=True):
        inputs = one.loss_fn_inputs
        assert {len(one.tokens), len(one.mask), *map(len, inputs.values())} == {len(row) - 1}
        assert [*one.tokens[:1], *inputs["target_tokens"]] == row.token_ids.tolist()
        assert one.tokens[1:] == inputs["target_tokens"][:-1].tolist()
        np.testing.assert_array_equal(inputs["logprobs"][one.trained], row.logprobs[row.loss_mask > 0])
        np.testing.assert_array_equal(inputs["advantages"][one.trained], row.advantages[row.loss_mask > 0])
        assert not inputs["advantages"][~one.trained].any()
        assert not inputs["logprobs"][~one.trained].any()


def test_a_call_with_its_own_reward_has_its_own_advantage(group: Group) -> None:
    main, *_ = datums([with_rewards(group, 1.0, -1.0, None)], by_deviation=False)
    first, second, third = main.loss_fn_inputs["advantages"][main.trained]
    assert first == second > third


def test_another_temperature_than_the_one_that_tinker_scores_at_is_refused_by_name(linear: Group) -> None:
    with pytest.raises(InputError, match=r"(?=.*0\.5)(?=.*t\.0).*expect\(temperature=1\.0\)"):
        datums([linear])
    unknown = [
        msgspec.structs.replace(one, calls=[msgspec.structs.replace(call, sampling=Sampling()) for call in one.calls])
        for one in linear.trajectories
    ]
    assert len(datums([Group(linear.task_id, unknown)])) == 2
