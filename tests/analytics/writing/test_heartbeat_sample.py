"""Which heartbeats get a row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from analytics.writing.heartbeat_sample import FORGOTTEN_MINUTES, MINUTE_MS, HeartbeatSample
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

BEAT = Heartbeat("w", "worker", "host", 1, [StageSlots(Stage.RUN, "default", 8, 8, [0])])


def busier(beat: Heartbeat, free: int) -> Heartbeat:
    return replace(beat, stages=[replace(one, free=free) for one in beat.stages])


def test_a_process_has_a_row_a_minute_and_one_for_each_change() -> None:
    sample = HeartbeatSample()
    story = [
        (0, BEAT, True),
        (2_000, busier(BEAT, 7), False),
        (59_999, BEAT, False),
        (60_000, BEAT, True),
        (62_000, replace(BEAT, obstacle="no engine answers"), True),
        (64_000, replace(BEAT, obstacle="no engine answers"), False),
        (66_000, BEAT, True),
        (68_000, replace(BEAT, stages=[]), True),
        (70_000, replace(BEAT, stages=[], leaving=True), True),
    ]
    assert [sample.takes(beat, at) for at, beat, _ in story] == [kept for *_, kept in story]


@given(st.lists(st.tuples(st.integers(0, 5 * MINUTE_MS), st.sampled_from("abc"), st.integers(0, 8)), max_size=60))
def test_slots_that_come_free_make_no_more_rows_than_processes_and_minutes(beats: list[tuple[int, str, int]]) -> None:
    sample = HeartbeatSample()
    kept = [
        (worker, at // MINUTE_MS)
        for at, worker, free in sorted(beats)
        if sample.takes(busier(replace(BEAT, worker_id=worker), free), at)
    ]
    assert len(kept) == len(set(kept))
    assert set(kept) == {(worker, at // MINUTE_MS) for at, worker, _ in beats}


def test_processes_that_ended_are_forgotten() -> None:
    sample = HeartbeatSample()
    for number in range(100):
        assert sample.takes(replace(BEAT, worker_id=f"w-{number}"), number * MINUTE_MS)
        assert len(sample._kept) <= FORGOTTEN_MINUTES
