"""Curves by minute: those of a recount from scratch, in whatever order trajectories came, and bounded."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analytics.live.series import ALL, BINS, MINUTE_MS, REWARDS, RUNS, WINDOW, Series
from tests.analytics.flagged import good
from topics.types.errors import Kind, SessionError
from topics.types.session import Status
from topics.types.trajectory import GroupFinished, Trajectory

NOW = 1_900_000_020_000
GOOD = good()


def trajectory(reward: float | None = 1.0, *, version: int | None = 7, **more: Any) -> Trajectory:
    calls = [replace(call, policy_version=version) for call in GOOD.calls]
    return replace(GOOD, reward=reward, calls=calls, **more)


sessions = st.tuples(
    st.integers(0, 250),
    st.builds(
        trajectory,
        st.sampled_from([None, -1.0, 0.0, 0.25, 1.0, 3.0]),
        version=st.sampled_from([None, 1, 2, 5]),
        run=st.sampled_from([None, "a", "b"]),
        harness=st.sampled_from(["pi", "codex"]),
        error=st.sampled_from([None, SessionError("run", Kind.AGENT, "exit_code", "1")]),
    ),
)


@given(st.lists(sessions, max_size=30), st.randoms())
def test_curves_are_those_of_a_recount(found: list[tuple[int, Trajectory]], random: Any) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)
    series = Series()
    for minute, record in shuffled:
        series.trajectory(record, NOW + minute * MINUTE_MS)
    newest = max((minute for minute, _ in found), default=0)
    shown = [(minute, record) for minute, record in found if minute > newest - WINDOW]
    curves = series.curves()
    for run in (ALL, "a", "b"):
        of_run = [(minute, record) for minute, record in shown if run in (ALL, record.run)]
        assert (run in curves) == bool(of_run)
        if of_run:
            _compare(curves[run], of_run)
    assert series.runs == sorted({record.run for _, record in shown if record.run})
    merged = {one.harness: one for one in series.harnesses()}
    for harness, one in merged.items():
        own = [record for _, record in shown if record.harness == harness]
        drift = [sum(record.stats.drift.get(kind, 0) for record in own) for kind in ("clean", "realign", "fork")]
        assert one.sessions == len(own)
        assert one.merge_rate == pytest.approx((drift[0] + drift[1]) / sum(drift))
        assert one.prompt_tokens == sum(call.prompt_tokens for record in own for call in record.calls)
    assert sum(one.sessions for one in merged.values()) == len(shown)


def _compare(curve: Any, of_run: list[tuple[int, Trajectory]]) -> None:
    rewards = [record.reward for _, record in of_run if record.reward is not None]
    assert (curve.low, curve.high) == ((min(0.0, *rewards), max(1.0, *rewards)) if rewards else (None, None))
    assert [bucket.at for bucket in curve.buckets] == sorted(
        {(NOW + minute * MINUTE_MS) // MINUTE_MS * MINUTE_MS for minute, _ in of_run}
    )
    for bucket in curve.buckets:
        here = [record for minute, record in of_run if (NOW + minute * MINUTE_MS) // MINUTE_MS * MINUTE_MS == bucket.at]
        known = [record.reward for record in here if record.reward is not None]
        assert bucket.sessions == len(here)
        assert bucket.mean_reward == (pytest.approx(statistics.fmean(known)) if known else None)
        assert sum(bucket.reward_counts) == len(known)
        assert bucket.sampled_tokens == sum(record.stats.sampled_tokens for record in here)
        assert bucket.failures.get("agent", 0) == sum(record.error is not None for record in here)
        calls = [call.policy_version for record in here for call in record.calls if call.policy_version is not None]
        assert sum(bucket.policy_versions.values()) == len(calls)
        until = [
            call.policy_version
            for minute, record in of_run
            for call in record.calls
            if call.policy_version is not None and (NOW + minute * MINUTE_MS) // MINUTE_MS * MINUTE_MS <= bucket.at
        ]
        expected = statistics.fmean(max(until) - version for version in calls) if calls else None
        assert bucket.staleness_mean == (None if expected is None else pytest.approx(expected))


def test_a_histogram_has_bins_of_equal_width_over_the_runs_range() -> None:
    series = Series()
    for reward in (-1.0, 0.0, 0.99, 1.0):
        series.trajectory(trajectory(reward), NOW)
    [bucket] = series.curves()[ALL].buckets
    assert (len(bucket.reward_counts), bucket.reward_counts[0], bucket.reward_counts[10]) == (BINS, 1, 1)
    assert bucket.reward_counts[-1] == 2


def test_equal_rewards_have_the_range_of_0_to_1() -> None:
    series = Series()
    for _ in range(3):
        series.trajectory(trajectory(1.0), NOW)
    curve = series.curves()[ALL]
    assert (curve.low, curve.high, curve.buckets[0].reward_counts) == (0.0, 1.0, [0] * (BINS - 1) + [3])


def test_extreme_rewards_have_a_histogram_too() -> None:
    series = Series()
    for reward in (-1.7e308, 1.7e308, 1.7e308, float("inf"), float("nan")):
        series.trajectory(trajectory(reward), NOW)
    [bucket] = series.curves()[ALL].buckets
    assert (bucket.reward_counts[0], bucket.reward_counts[-1], sum(bucket.reward_counts)) == (1, 2, 3)


def test_groups_whose_rewards_are_equal_are_counted() -> None:
    series = Series()
    groups: list[list[float | None]] = [[1.0, 1.0], [0.0, 1.0], [None, 1.0], [None, None], [0.5, 0.5, None]]
    for rewards in groups:
        statuses = [Status.COMPLETED] * len(rewards)
        series.group(GroupFinished("t", len(rewards), [], rewards, statuses, run="a"), NOW)
    for run in (ALL, "a"):
        [bucket] = series.curves()[run].buckets
        assert (bucket.groups, bucket.zero_variance_groups) == (5, 2)


def test_what_polar_rebuild_wrote_counts_nowhere() -> None:
    series = Series()
    series.trajectory(trajectory(rebuilt_with=b"{}"), NOW)
    series.group(GroupFinished("t", 1, [], [1.0], [Status.COMPLETED], rebuilt=True), NOW)
    assert series.curves() == {}


def test_memory_is_bounded() -> None:
    series = Series()
    for n in range(3 * RUNS):
        series.trajectory(trajectory(run=f"run-{n}"), NOW + n * MINUTE_MS)
    assert series.runs == sorted(f"run-{n}" for n in range(2 * RUNS, 3 * RUNS))
    for n in range(REWARDS + 10):
        series.trajectory(trajectory(float(n % 2)), NOW + 500 * MINUTE_MS)
    [bucket] = series.curves()[ALL].buckets
    assert (sum(bucket.reward_counts), bucket.sessions) == (REWARDS, REWARDS + 10)
    assert bucket.mean_reward == pytest.approx(0.5)


def test_only_the_newest_minutes_are_shown_if_so_requested() -> None:
    series = Series()
    for n in range(5):
        series.trajectory(trajectory(version=n), NOW + n * MINUTE_MS)
    shown = series.curves(2)[ALL].buckets
    assert [bucket.policy_versions for bucket in shown] == [{3: 2}, {4: 2}]
    assert [bucket.staleness_mean for bucket in shown] == [0, 0]
