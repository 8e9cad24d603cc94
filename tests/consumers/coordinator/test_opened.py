"""Sessions that someone's own agent works in: asked for, closed, left alone, cancelled."""

from __future__ import annotations

import pytest

from consumers.coordinator.commands import ClaimLost, DeadlinePassed, Input
from consumers.coordinator.deadlines import CLOSING_MS, UNOPENED_MS
from tests.consumers.coordinator.bench import Bench, submitted, wants
from topics.completions import CloseGroup, Open
from topics.control import CloseKey, Grant, Revoke
from topics.events import (
    CancelRequested,
    Claimed,
    HandedBack,
    RunFinished,
    SessionCloseRequested,
    SessionOpenRequested,
    SessionOpenWithdrawn,
    Stopped,
    TrajectoryEmitted,
)
from topics.types.errors import Kind
from topics.types.session import Accounting, Phase, Stage, Status, TaskState

TTL_MS = 60_000


def asked(
    claim_id: str = "a", samples: int | None = None, task_id: str = "t", mode: str = "train"
) -> SessionOpenRequested:
    return SessionOpenRequested(f"f-{claim_id}", task_id, claim_id, TTL_MS, samples, mode)


def closed(session_id: str = "t.0", reward: float | None = 1.0) -> SessionCloseRequested:
    return SessionCloseRequested("c", session_id, reward)


def after(bench: Bench, ms: int) -> None:
    bench.now += ms
    bench.give(*(DeadlinePassed(session_id) for session_id in bench.table.pop_due(bench.now)))


def test_an_open_is_granted_at_once_and_a_close_ends_it_with_its_reward() -> None:
    bench = Bench(now=1_000)
    opened = bench.give(asked())
    assert opened.records == (Open("t.0", 1, "a"),)
    assert opened.commands == (Grant("t.0", 1, "a", log_partition=0),)
    assert (bench.session().phase, bench.table.granted_claims, wants(bench.table)) == (Phase.RUNNING, {}, {})
    bench.now += 5_000
    ended = Revoke("t.0", "a", "ended"), CloseKey("t.0", "a"), Grant("t.0", 1, "c")
    assert bench.give(closed()).commands == ended
    assert "t.0" not in bench.builds, "the agent may be in the middle of a call"
    after(bench, CLOSING_MS)
    build = bench.builds["t.0"]
    assert (build.claim_id, build.status, build.reward, build.error) == ("a", Status.COMPLETED, 1.0, None)
    assert (build.harness, build.builder, build.mode, build.output) == ("external", "prefix_merging", "train", None)
    assert build.accounting == Accounting(run_ms=5_000)
    bench.give(TrajectoryEmitted("f", "t.0", 1, 1, 41, 3, Status.COMPLETED, None, 1.0))
    assert (bench.session().calls, bench.session().trainable_tokens) == (3, 41)
    assert bench.groups == [CloseGroup("t", 1, [1.0], [Status.COMPLETED])]


def test_asking_again_gives_the_same_grant_and_never_a_second_sample() -> None:
    bench = Bench()
    first = bench.give(asked(samples=2))
    again = bench.give(asked(samples=2))
    assert (again.commands, again.records, again.sessions) == (first.commands, (), ())
    assert bench.session("t.1").phase is Phase.UNOPENED
    bench.give(closed())
    assert bench.give(asked(samples=2)).commands == (Revoke("t.0", "a", "ended"),)


def test_each_open_of_a_task_takes_the_next_sample_until_there_is_none() -> None:
    bench = Bench()
    for claim_id, samples in (("a", 3), ("b", None), ("c", 3)):
        bench.give(asked(claim_id, samples))
    assert [bench.session(f"t.{index}").run_claim_id for index in range(3)] == ["a", "b", "c"]
    assert bench.give(asked("d")).commands == (Revoke("t", "d", "taken"),)


@pytest.mark.parametrize(
    ("wish", "reason"), [(asked("b", samples=2), "samples"), (asked("b", mode="eval"), "mode")], ids=["samples", "mode"]
)
def test_an_open_that_contradicts_its_task_is_refused(wish: SessionOpenRequested, reason: str) -> None:
    bench = Bench()
    bench.give(asked(samples=3))
    refused = bench.give(wish)
    assert (refused.commands, refused.sessions) == ((Revoke("t", "b", reason),), ())
    assert refused.skipped == f"refused_{reason}"


def test_an_open_of_a_submitted_task_is_refused_and_so_is_submitting_an_opened_one() -> None:
    bench = Bench()
    bench.give(submitted(), asked(task_id="u"))
    assert bench.give(asked()).commands == (Revoke("t", "a", "submitted"),)
    assert bench.give(closed("t.0")).commands == (Revoke("t.0", "c", "submitted"),)
    assert len(bench.give(submitted(task_id="u")).commands) == 1
    assert bench.table.task("u") == TaskState(
        "u", 1, "", plan=bench.table.task_of(bench.session("u.0")).plan, opened_at=0
    )


def test_eval_sessions_go_to_the_topic_of_their_own() -> None:
    bench = Bench()
    bench.give(asked(mode="eval"), closed())
    after(bench, CLOSING_MS)
    assert (bench.builds["t.0"].mode, bench.builds["t.0"].output) == ("eval", "eval")


def test_a_session_left_alone_is_timed_out_at_its_ttl_and_a_later_close_is_told() -> None:
    bench = Bench()
    bench.give(asked())
    after(bench, TTL_MS - 1)
    assert bench.session().phase is Phase.RUNNING
    after(bench, 1)
    assert bench.give(closed()).commands == (Revoke("t.0", "c", "ended"),)
    after(bench, CLOSING_MS)
    build = bench.builds["t.0"]
    assert (build.status, build.reward, build.accounting.run_ms) == (Status.TIMED_OUT, None, TTL_MS)
    assert build.error is not None
    assert (build.error.kind, build.error.code) == (Kind.BUDGET, "timeout")
    assert "TTL of 60 s" in build.error.message


def test_the_first_close_counts() -> None:
    bench = Bench()
    bench.give(asked(), closed(reward=0.25))
    assert bench.give(closed(reward=1.0)).commands == (Revoke("t.0", "c", "ended"),)
    after(bench, CLOSING_MS)
    assert bench.give(closed(reward=1.0)).sessions == ()
    assert bench.builds["t.0"].reward == 0.25


def test_closing_what_is_not_open_is_told() -> None:
    bench = Bench()
    assert bench.give(closed("nosuch.0")).commands == (Revoke("nosuch.0", "c", "unknown"),)
    bench.give(asked(samples=2))
    assert bench.give(closed("t.1")).commands == (Revoke("t.1", "c", "unopened"),)


def test_samples_that_nobody_opens_within_a_day_are_cancelled_so_that_the_group_ends() -> None:
    bench = Bench()
    bench.give(asked(samples=3), closed())
    after(bench, CLOSING_MS)
    bench.now = UNOPENED_MS - 1_000
    bench.give(asked("b"))
    after(bench, 1_000)
    error = bench.builds["t.2"].error
    assert bench.builds["t.2"].status is Status.CANCELLED
    assert error is not None
    assert (error.kind, error.code) == (Kind.INPUT, "unopened")
    assert (bench.session("t.1").phase, bench.give(asked("c")).commands) == (
        Phase.RUNNING,
        (Revoke("t", "c", "taken"),),
    )


def test_cancel_ends_open_and_unopened_samples() -> None:
    bench = Bench()
    bench.give(asked(samples=2))
    stop = bench.give(CancelRequested("f", "t"))
    assert stop.commands == (Revoke("t.0", "a", "cancelled"), CloseKey("t.0", "a"))
    assert bench.builds["t.1"].status is Status.CANCELLED
    assert bench.give(asked("b")).commands == (Revoke("t", "b", "cancelled"),)
    after(bench, CLOSING_MS)
    assert (bench.builds["t.0"].status, bench.builds["t.0"].claim_id) == (Status.CANCELLED, "a")


def test_cancel_before_the_first_open_is_honoured() -> None:
    bench = Bench()
    bench.give(CancelRequested("f", "t"), CancelRequested("f", "u", "u.0"))
    assert bench.give(asked(samples=2)).commands == (Revoke("t", "a", "cancelled"),)
    assert [bench.builds[f"t.{index}"].status for index in range(2)] == [Status.CANCELLED] * 2
    assert bench.give(asked("b", samples=2, task_id="u")).commands == (Grant("u.1", 1, "b", log_partition=0),)
    assert bench.builds["u.0"].status is Status.CANCELLED


def test_a_withdrawn_open_leaves_its_sample_to_the_next_who_asks() -> None:
    bench = Bench()
    bench.give(asked())
    bench.now += 30_000
    bench.give(SessionOpenWithdrawn("w", "t", "a"))
    assert bench.give(asked()).commands == (Revoke("t.0", "a", "ended"),), "the same asking, delivered late"
    assert bench.give(SessionOpenWithdrawn("w", "t", "a")).skipped == "nothing_to_withdraw"
    assert bench.give(asked("b")).commands == (Grant("t.0", 1, "b", log_partition=0),)
    bench.give(SessionOpenWithdrawn("w", "t", "a"))
    assert (bench.session().run_claim_id, bench.opened["t.0"]) == ("b", Open("t.0", 1, "b"))
    bench.give(SessionOpenWithdrawn("v", "t", "b"))
    for claim_id in ("a", "b"):
        assert bench.give(asked(claim_id)).commands == (Revoke("t.0", claim_id, "ended"),)


def test_a_withdrawn_sample_still_ends_a_day_after_the_first_open() -> None:
    bench = Bench()
    bench.give(asked(), SessionOpenWithdrawn("w", "t", "a"))
    after(bench, UNOPENED_MS)
    assert bench.builds["t.0"].status is Status.CANCELLED
    assert bench.builds["t.0"].claim_id == "", "no call counts"


@pytest.mark.parametrize(
    "given",
    [
        ClaimLost("t.0", "a"),
        HandedBack("f", "t.0", 1, "a"),
        RunFinished("f", "t.0", 1, "a", Status.FAILED),
        Stopped("f", "t.0", 1, "a"),
        DeadlinePassed("t.0"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_happens_to_workers_means_nothing(given: Input) -> None:
    bench = Bench()
    bench.give(asked())
    assert bench.give(given).skipped is not None
    assert bench.session().phase is Phase.RUNNING


@pytest.mark.parametrize("stage", Stage)
def test_no_worker_ever_claims_one(stage: Stage) -> None:
    bench = Bench()
    bench.give(asked(samples=2))
    for session_id in ("t.0", "t.1"):
        assert bench.give(Claimed("f", session_id, 1, stage, "w", "w")).commands == (Revoke(session_id, "w", "taken"),)
