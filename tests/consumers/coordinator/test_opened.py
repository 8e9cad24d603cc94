"""Opened sessions: their samples, closes, TTL, cancels and withdrawals. `test_table` shows each of their inputs in each phase."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from consumers.coordinator.deadlines import CLOSING_MS, UNOPENED_MS
from tests.consumers.coordinator.bench import Bench, wants
from topics import events
from topics.completions import CloseGroup, Open
from topics.control import CloseKey, Grant, Revoke
from topics.types.errors import Kind
from topics.types.session import Accounting, Phase, Status

TTL_MS = 50_000


def opening(
    claim_id: str = "a", samples: int | None = None, task_id: str = "t", mode: str = "train", run: str | None = None
) -> events.SessionOpenRequested:
    return events.SessionOpenRequested(f"f-{claim_id}", task_id, claim_id, TTL_MS, samples, mode, run)


def closing(session_id: str = "t.0", reward: float | None = 1.0) -> events.SessionCloseRequested:
    return events.SessionCloseRequested("c", session_id, reward)


def test_an_open_is_granted_at_once_and_a_close_ends_it_with_its_reward() -> None:
    bench = Bench(now=1_000)
    opened = bench.give(opening())
    assert opened.records == (Open("t.0", 1, "a"),)
    assert opened.commands == (Grant("t.0", 1, "a", log_partition=0),)
    assert (bench.session().phase, bench.table.granted_claims, wants(bench.table)) == (Phase.RUNNING, {}, {})
    bench.now += 5_000
    ended = Revoke("t.0", "a", "ended"), CloseKey("t.0", "a"), Grant("t.0", 1, "c")
    assert bench.give(closing()).commands == ended
    assert "t.0" not in bench.builds, "the agent may be in the middle of a call"
    bench.pass_time(CLOSING_MS)
    build = bench.builds["t.0"]
    assert (build.claim_id, build.status, build.reward, build.error) == ("a", Status.COMPLETED, 1.0, None)
    assert (build.harness, build.builder, build.mode, build.output) == ("external", "prefix_merging", "train", None)
    assert build.accounting == Accounting(run_ms=5_000)
    bench.give(events.TrajectoryEmitted("f", "t.0", 1, 1, 41, 3, Status.COMPLETED, None, 1.0))
    assert (bench.session().calls, bench.session().trainable_tokens) == (3, 41)
    assert bench.groups == [CloseGroup("t", 1, [1.0], [Status.COMPLETED])]


@pytest.mark.parametrize("is_forced", [False, True])
def test_the_builder_is_told_whether_the_reward_needs_a_call(is_forced: bool) -> None:
    bench = Bench()
    bench.give(opening())
    bench.give(replace(closing(), is_forced=is_forced))
    bench.pass_time(CLOSING_MS)
    assert bench.builds["t.0"].reward_needs_call is not is_forced


def test_each_open_of_a_task_takes_the_next_sample_until_there_is_none() -> None:
    bench = Bench()
    for claim_id, samples in (("a", 3), ("b", None), ("c", 3)):
        bench.give(opening(claim_id, samples))
    assert [bench.session(f"t.{index}").run_claim_id for index in range(3)] == ["a", "b", "c"]
    assert bench.give(opening("d")).commands == (Revoke("t", "d", "taken"),)


def test_the_first_open_names_the_run_of_all_samples() -> None:
    bench = Bench()
    bench.give(opening("a", samples=2, run="night"))
    bench.give(opening("b"))
    assert bench.give(opening("c", run="day")).commands == (Revoke("t", "c", "run"),)
    for session in ("t.0", "t.1"):
        bench.give(closing(session))
    bench.pass_time(CLOSING_MS)
    assert [build.run for build in bench.builds.values()] == ["night", "night"]


def test_a_label_is_of_its_session_alone() -> None:
    bench = Bench()
    bench.give(replace(opening("a", samples=2), label="temperature 0.7"))
    bench.give(opening("b"))
    assert [bench.session(name).label for name in ("t.0", "t.1")] == ["temperature 0.7", None]
    bench.give(closing())
    bench.pass_time(CLOSING_MS)
    assert bench.builds["t.0"].label == "temperature 0.7"


def test_a_withdrawn_open_takes_its_label_along() -> None:
    bench = Bench()
    bench.give(replace(opening("a", samples=1), label="mine"))
    bench.give(events.SessionOpenWithdrawn("w", "t", "a"))
    assert bench.session().label is None


@pytest.mark.parametrize(
    ("wish", "reason"),
    [(opening("b", samples=2), "samples"), (opening("b", mode="eval"), "mode"), (opening("b", run="night"), "run")],
    ids=["samples", "mode", "run"],
)
def test_an_open_that_contradicts_its_task_is_refused(wish: events.SessionOpenRequested, reason: str) -> None:
    bench = Bench()
    bench.give(opening(samples=3))
    refused = bench.give(wish)
    assert (refused.commands, refused.sessions) == ((Revoke("t", "b", reason),), ())
    assert refused.skipped == f"refused_{reason}"


def test_a_session_times_out_at_its_ttl_and_a_later_close_is_refused() -> None:
    bench = Bench()
    bench.give(opening(mode="eval"))
    bench.pass_time(TTL_MS - 1)
    assert bench.session().phase is Phase.RUNNING
    bench.pass_time(1)
    assert bench.give(closing()).commands == (Revoke("t.0", "c", "ended"),)
    bench.pass_time(CLOSING_MS)
    build = bench.builds["t.0"]
    assert (build.status, build.reward, build.accounting.run_ms) == (Status.TIMED_OUT, None, TTL_MS)
    assert build.error is not None
    assert (build.error.kind, build.error.code) == (Kind.BUDGET, "timeout")
    assert "TTL of 50 s" in build.error.message
    assert (build.mode, build.output) == ("eval", "eval")


def test_a_close_of_an_unknown_or_unopened_session_is_refused() -> None:
    bench = Bench()
    assert bench.give(closing("nosuch.0")).commands == (Revoke("nosuch.0", "c", "unknown"),)
    bench.give(opening(samples=2))
    assert bench.give(closing("t.1")).commands == (Revoke("t.1", "c", "unopened"),)


def test_samples_that_nobody_opens_within_a_day_are_cancelled_so_that_the_group_ends() -> None:
    bench = Bench()
    bench.give(opening(samples=3), closing())
    bench.pass_time(CLOSING_MS)
    bench.now = UNOPENED_MS - 1_000
    bench.give(opening("b"))
    bench.pass_time(1_000)
    error = bench.builds["t.2"].error
    assert bench.builds["t.2"].status is Status.CANCELLED
    assert error is not None
    assert (error.kind, error.code) == (Kind.INPUT, "unopened")
    assert (bench.session("t.1").phase, bench.give(opening("c")).commands) == (
        Phase.RUNNING,
        (Revoke("t", "c", "taken"),),
    )


def test_cancel_ends_open_and_unopened_samples() -> None:
    bench = Bench()
    bench.give(opening(samples=2))
    stop = bench.give(events.CancelRequested("f", "t"))
    assert stop.commands == (Revoke("t.0", "a", "cancelled"), CloseKey("t.0", "a"))
    assert bench.builds["t.1"].status is Status.CANCELLED
    assert bench.give(opening("b")).commands == (Revoke("t", "b", "cancelled"),)
    bench.pass_time(CLOSING_MS)
    assert (bench.builds["t.0"].status, bench.builds["t.0"].claim_id) == (Status.CANCELLED, "a")


def test_cancel_before_the_first_open_is_honoured() -> None:
    bench = Bench()
    bench.give(events.CancelRequested("f", "t"), events.CancelRequested("f", "u", "u.0"))
    assert bench.give(opening(samples=2)).commands == (Revoke("t", "a", "cancelled"),)
    assert [bench.builds[f"t.{index}"].status for index in range(2)] == [Status.CANCELLED] * 2
    assert bench.give(opening("b", samples=2, task_id="u")).commands == (Grant("u.1", 1, "b", log_partition=0),)
    assert bench.builds["u.0"].status is Status.CANCELLED


def test_a_withdrawn_open_leaves_its_sample_to_the_next_who_asks() -> None:
    bench = Bench()
    bench.give(opening())
    bench.now += 30_000
    bench.give(events.SessionOpenWithdrawn("w", "t", "a"))
    assert bench.give(opening()).commands == (Revoke("t.0", "a", "ended"),), "the same asking, delivered late"
    assert bench.give(events.SessionOpenWithdrawn("w", "t", "a")).skipped == "nothing_to_withdraw"
    assert bench.give(opening("b")).commands == (Grant("t.0", 1, "b", log_partition=0),)
    bench.give(events.SessionOpenWithdrawn("w", "t", "a"))
    assert (bench.session().run_claim_id, bench.opened["t.0"]) == ("b", Open("t.0", 1, "b"))
    bench.give(events.SessionOpenWithdrawn("v", "t", "b"))
    for claim_id in ("a", "b"):
        assert bench.give(opening(claim_id)).commands == (Revoke("t.0", claim_id, "ended"),)


def test_a_withdrawn_sample_still_ends_a_day_after_the_first_open() -> None:
    bench = Bench()
    bench.give(opening(), events.SessionOpenWithdrawn("w", "t", "a"))
    bench.pass_time(UNOPENED_MS)
    assert bench.builds["t.0"].status is Status.CANCELLED
    assert bench.builds["t.0"].claim_id == "", "no call counts"
