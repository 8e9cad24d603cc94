"""The page follows the outputs that were named last, and no record of a clock that is ahead moves its window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analytics.live.recent import EVAL, OUTPUTS, Recent
from analytics.live.series import ALL, MINUTE_MS
from tests.analytics.flagged import good
from tests.analytics.live.test_session_rows import PLAN
from topics.types.session import TaskState

NOW = 1_900_000_020_000
DAY_MS = 24 * 3_600_000


def named(recent: Recent, output: str | None, at_ms: int) -> None:
    recent.row(TaskState(f"t-{output}", 1, "hash", plan=replace(PLAN, output=output)), at_ms)


def test_a_builder_whose_clock_is_a_day_ahead_empties_no_curve() -> None:
    recent = Recent()
    recent.output(good(), NOW - MINUTE_MS, NOW)
    recent.output(good(), NOW + DAY_MS, NOW)
    recent.output(good(), NOW, NOW)
    buckets = recent.series.curves()[ALL].buckets
    assert [(bucket.at, bucket.sessions) for bucket in buckets] == [
        ((NOW - MINUTE_MS) // MINUTE_MS * MINUTE_MS, 1),
        (NOW // MINUTE_MS * MINUTE_MS, 2),
    ]


@given(st.permutations(range(OUTPUTS + 9)))
def test_the_newest_outputs_are_followed_in_whatever_order_they_are_met(order: list[int]) -> None:
    recent = Recent()
    for _ in range(2):  # rows are written again
        for hour in order:
            named(recent, f"of-{hour}", NOW + hour * 60 * MINUTE_MS)
    assert set(recent.outputs) == {f"of-{hour}" for hour in range(9, OUTPUTS + 9)}


def test_outputs_that_are_named_in_turn_are_not_exchanged_with_each_row() -> None:
    recent = Recent()
    for _ in range(2):
        for index in range(OUTPUTS + 1):
            named(recent, f"of-{index}", NOW + index)
    assert set(recent.outputs) == {f"of-{index}" for index in range(OUTPUTS)}
    for output in (None, EVAL):
        named(recent, output, NOW + DAY_MS)
    assert len(recent.outputs) == OUTPUTS
    assert EVAL not in recent.outputs
