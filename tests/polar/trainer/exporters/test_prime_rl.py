"""prime-rl's `TrainingSample`: aligned arrays, advantages on every trained token, the temperature of the logits that sampled it.

No package index has prime-rl. The fields, their order and the use of `temperatures` are from its files at 559b44772:
`src/prime_rl/transports/rollouts/types.py`, `src/prime_rl/trainer/batch.py` (`prepare_sample`), `src/prime_rl/trainer/rl/train.py`.
"""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.trainer.exporters.prime_rl import training_samples
from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from tests.polar.trainer.exporters.conftest import with_rewards
from tests.polar.trainer.trees import MIXED, groups, trees
from topics.types.completion import Sampling
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory

PLACES = [
    "token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "mm_kwargs", "routed_experts", "mm_token_type_ids",
    "rl_weights", "ce_weights", "ref_kl_weights", "advantages",
]  # fmt: skip
"""Of its array, as upstream declares the fields."""
UNKNOWN = 0.75


def test_a_branched_rollout_is_two_samples(group: Group) -> None:
    main, side, other = training_samples(group, env_name="math", unknown_temperature=UNKNOWN)
    assert main.token_ids == [1, 2, 3, 4, 5, 5, 6]
    assert main.mask == [False, False, True, True, False, False, True]
    assert main.logprobs == [0, 0, -0.5, -0.25, 0, 0, -1]
    assert side.mask == [False, False, False, False, False, True], "what both hold is trained in the first"
    assert main.advantages == pytest.approx([0, 0, 1, 1, 0, 0, 1], abs=1e-5)
    assert other.advantages == pytest.approx([0, 0, 0, -1, -1], abs=1e-5)


def test_in_its_array_each_field_has_its_place(group: Group) -> None:
    sample = training_samples(group, env_name="math", unknown_temperature=UNKNOWN)[0]
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(sample))
    assert dict(zip(PLACES, wire, strict=True)) == {name: getattr(sample, name) for name in PLACES}


@given(groups(temperatures=MIXED))
def test_arrays_are_aligned_and_no_trained_token_lacks_an_advantage(group: Group) -> None:
    samples = training_samples(group, env_name="e", unknown_temperature=UNKNOWN, by_session=True)
    rows = grpo(group)
    assert len(samples) == len(rows)
    for sample, row in zip(samples, rows, strict=True):
        assert sample.advantages is not None
        assert sample.rl_weights is not None
        arrays = (sample.mask, sample.logprobs, sample.temperatures, sample.advantages, sample.rl_weights)
        assert {len(array) for array in arrays} == {len(sample.token_ids)}
        assert any(sample.mask)
        assert [weight > 0 for weight in sample.rl_weights] == sample.mask
        assert set(sample.temperatures) <= {0.5, UNKNOWN, 1.0}
        assert sample.advantages == row.advantages.tolist()


@given(groups(rewards=st.sampled_from([0.0, 1.0])))
def test_by_session_each_weighs_as_much_and_a_token_one_on_average(group: Group) -> None:
    samples, rows = training_samples(group, env_name="e", unknown_temperature=UNKNOWN, by_session=True), grpo(group)
    by_session: dict[str, float] = {}
    for sample, row in zip(samples, rows, strict=True):
        assert sample.rl_weights is not None
        by_session[row.session_id] = by_session.get(row.session_id, 0) + sum(sample.rl_weights)
    tokens = sum(sum(sample.mask) for sample in samples)
    assert list(by_session.values()) == pytest.approx([tokens / max(1, len(by_session))] * len(by_session), rel=1e-5)


@given(trees(rewards=st.just(1.0)))
def test_each_trained_token_is_scored_at_the_temperature_that_sampled_it(trajectory: Trajectory) -> None:
    """Every call has a temperature of its own, and `train.py`'s rule for logits and labels is applied to the sample."""
    heat = [Sampling(temperature=0.5 + number) for number in range(len(trajectory.calls))]
    calls = [msgspec.structs.replace(call, sampling=one) for call, one in zip(trajectory.calls, heat, strict=True)]
    trajectory = msgspec.structs.replace(trajectory, calls=calls)
    sampled_at = {
        token: span.call.sampling.temperature
        for expanded in trajectory.expanded()
        for span in expanded.spans
        for token in expanded.token_ids[span.start : span.end].tolist()
    }
    scored_at: dict[int, float] = {}
    for sample in training_samples(Group("t", [trajectory]), env_name="e"):
        labels = sample.token_ids[1:]  # shift_tensor_left: the logits at an index predict the next token
        at = zip(labels, sample.mask[1:], sample.temperatures[:-1], strict=True)  # logits / temperatures
        scored_at |= {label: temperature for label, is_trained, temperature in at if is_trained}
    assert scored_at == sampled_at


def with_temperature(group: Group, temperature: float | None) -> Group:
    """The group, whose very first call had this temperature."""
    first, *others = group.trajectories
    call, *calls = first.calls
    sampling = Sampling(temperature=temperature)
    first = msgspec.structs.replace(first, calls=[msgspec.structs.replace(call, sampling=sampling), *calls])
    return Group(group.task_id, [first, *others])


def test_a_temperature_that_prime_rl_cannot_divide_by_is_refused(linear: Group) -> None:
    export = partial(training_samples, env_name="e")
    with pytest.raises(InputError, match=r"temperature: call t\.0\.c0 is greedy, .*: leave t\.0 out \(got 0\.0\)"):
        export(with_temperature(linear, 0.0), unknown_temperature=1.0)
    with pytest.raises(InputError, match=r"temperature: call t\.0\.c0 is greedy"):
        export(with_temperature(linear, 1e-6))  # vLLM samples greedily there too
    with pytest.raises(InputError, match=r"temperature: call t\.0\.c0 set none: pass unknown_temperature=…"):
        export(with_temperature(linear, None))
    sample, _ = export(with_temperature(linear, None), unknown_temperature=UNKNOWN)
    assert sample.temperatures == [1, UNKNOWN, UNKNOWN, 1, 0.5, 1]
    for greedy in (0.0, 1e-6):
        with pytest.raises(InputError, match="unknown_temperature: is greedy"):
            export(linear, unknown_temperature=greedy)


def test_the_name_of_prime_rl_s_totals_is_refused(linear: Group) -> None:
    with pytest.raises(InputError, match="env_name: is reserved by prime-rl"):
        training_samples(linear, env_name="all")


def test_the_tokens_of_a_call_have_the_advantage_of_its_reward(linear: Group) -> None:
    main, _ = training_samples(with_rewards(linear, 0.0, None), env_name="e", by_deviation=False)
    assert main.advantages == [0, 0, -0.5, -0.5, 0, 0.5]
