"""prime-rl's `TrainingSample`: aligned arrays, advantages on every trained token, and the place of each field on the wire."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.exporters.prime_rl import training_samples
from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from tests.polar.trainer.trees import MIXED, groups

PLACES = [
    "token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "mm_kwargs", "routed_experts", "mm_token_type_ids",
    "rl_weights", "ce_weights", "ref_kl_weights", "advantages",
]  # fmt: skip
"""Of its array on the wire, as upstream declares the fields."""


def test_a_branched_rollout_is_two_samples(group: Group) -> None:
    main, side, other = training_samples(group, env_name="math")
    assert main.token_ids == [1, 2, 3, 4, 5, 5, 6]
    assert main.mask == [False, False, True, True, False, False, True]
    assert main.logprobs == [0, 0, -0.5, -0.25, 0, 0, -1]
    assert side.mask == [False, False, False, False, False, True], "what both hold is trained in the first"
    assert main.advantages == pytest.approx([0, 0, 1, 1, 0, 0, 1], abs=1e-5)
    assert other.advantages == pytest.approx([0, 0, 0, -1, -1], abs=1e-5)


def test_on_the_wire_each_field_has_its_place(group: Group) -> None:
    sample = training_samples(group, env_name="math")[0]
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(sample))
    assert dict(zip(PLACES, wire, strict=True)) == {name: getattr(sample, name) for name in PLACES}


@given(groups(temperatures=MIXED))
def test_arrays_are_aligned_and_no_trained_token_lacks_an_advantage(group: Group) -> None:
    samples = training_samples(group, env_name="e", by_session=True)
    rows = grpo(group)
    assert len(samples) == len(rows)
    for sample, row in zip(samples, rows, strict=True):
        assert sample.advantages is not None
        assert sample.rl_weights is not None
        arrays = (sample.mask, sample.logprobs, sample.temperatures, sample.advantages, sample.rl_weights)
        assert {len(array) for array in arrays} == {len(sample.token_ids)}
        assert any(sample.mask)
        assert [weight > 0 for weight in sample.rl_weights] == sample.mask
        assert set(sample.temperatures) <= {0.5, 1.0}
        assert sample.advantages == row.advantages.tolist()


@given(groups(rewards=st.sampled_from([0.0, 1.0])))
def test_by_session_each_weighs_as_much_and_a_token_one_on_average(group: Group) -> None:
    samples, rows = training_samples(group, env_name="e", by_session=True), grpo(group)
    by_session: dict[str, float] = {}
    for sample, row in zip(samples, rows, strict=True):
        assert sample.rl_weights is not None
        by_session[row.session_id] = by_session.get(row.session_id, 0) + sum(sample.rl_weights)
    tokens = sum(sum(sample.mask) for sample in samples)
    assert list(by_session.values()) == pytest.approx([tokens / max(1, len(by_session))] * len(by_session), rel=1e-5)
