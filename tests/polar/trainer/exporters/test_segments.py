"""What all exporters stand on: the longest trace is the last, whichever builder made them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from polar.trainer.exporters.segments import segments
from tests.polar.trainer.trees import trees
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
