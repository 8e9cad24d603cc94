"""What all exporters stand on: the longest trace is the last, whichever builder made them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polar.trainer.exporters.segments import one_reward, segments
from tests.polar.trainer.trees import trees
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory


@given(trees(), st.randoms(use_true_random=False))
def test_the_longest_trace_is_the_last_in_whatever_order_a_builder_gives_them(
    trajectory: Trajectory, random: object
) -> None:
    """`per_request` gives them as they were asked."""
    traces = list(trajectory.traces)
    random.shuffle(traces)  # type: ignore[attr-defined]  # hypothesis' own Random
    sizes = [len(one.expanded.token_ids) for one in segments(replace(trajectory, traces=traces))]
    assert sizes == sorted(sizes)


@given(trees(rewards=st.just(0.5)), st.lists(st.sampled_from([None, 0.5, 1.0]), min_size=9, max_size=9))
def test_one_reward_is_that_of_every_trained_token_or_an_error(
    trajectory: Trajectory, rewards: list[float | None]
) -> None:
    calls = [replace(call, reward=reward) for call, reward in zip(trajectory.calls, rewards, strict=False)]
    trajectory = replace(trajectory, calls=calls)
    for segment in segments(trajectory):
        samplers = [trajectory.nodes[node].call for node in trajectory.traces[segment.index].trains]
        own = {calls[call].reward for call in samplers if call is not None}
        wanted = {0.5 if reward is None else reward for reward in own}
        if len(wanted) == 1:
            assert one_reward(trajectory, [segment], "") in wanted
        else:
            with pytest.raises(InputError, match=r"groups: its calls have the rewards \[0\.5, 1\.0\]"):
                one_reward(trajectory, [segment], "")
