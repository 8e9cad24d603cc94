"""The pure coordinator: the plain way, and each thing that goes wrong."""

from __future__ import annotations

from msgspec.structs import replace

from consumers.coordinator.commands import (
    ClaimLost,
    DeadlinePassed,
    PoolOffline,
    RejectTask,
    TaskExpired,
)
from consumers.coordinator.deadlines import BUILDING_MS, CLOSING_MS, EXPIRY_MS, QUEUE_MS, TICKET_MS
from tests.consumers.coordinator.bench import PLAN, Bench, submitted, wants
from topics.completions import CloseGroup, Open
from topics.control import CloseKey, Discard, Grant, Revoke
from topics.events import (
    CancelRequested,
    Evaluated,
    GroupEmitted,
    HandedBack,
    InitFinished,
    RunFinished,
    Stopped,
    TrajectoryEmitted,
)
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Phase, Stage, Status


def test_a_build_that_is_asked_for_again_opens_nothing_since_the_trajectory_may_be_out() -> None:
    bench = Bench()
    bench.give(submitted(), CancelRequested("f", "t"))
    assert bench.opened["t.0"] == Open("t.0", 1, "")
    bench.now += BUILDING_MS
    assert bench.give(DeadlinePassed("t.0")).records == (bench.builds["t.0"],)


def test_the_plain_way_ends_with_one_build_and_a_group() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    assert bench.give(Evaluated("f", "t.0", 1, "e1", reward=1.0)).records == (bench.builds["t.0"],)
    assert (bench.builds["t.0"].claim_id, bench.builds["t.0"].reward) == ("r1", 1.0)
    bench.give(TrajectoryEmitted("f", "t.0", 1))
    assert bench.groups == [CloseGroup("t", 1, [1.0], [Status.COMPLETED])]
    assert bench.session().phase is Phase.ENDED
    bench.give(GroupEmitted("f", "t"))
    assert bench.table.pop_expired(EXPIRY_MS) == ["t"]
    assert bench.give(TaskExpired("t")).skipped == "not_forgettable"
    bench.now = EXPIRY_MS
    bench.give(TaskExpired("t"))
    assert bench.table.task("t") is None
    assert bench.table.session("t.0") is None


def test_a_build_that_failed_is_what_the_table_and_the_group_say() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    bench.give(Evaluated("f", "t.0", 1, "e1", reward=1.0))
    error = SessionError("build", Kind.INPUT, "builder_input", "no such setting")
    bench.give(TrajectoryEmitted("f", "t.0", 1, status=Status.FAILED, error=error))
    assert (bench.session().status, bench.session().error, bench.session().reward) == (Status.FAILED, error, None)
    assert bench.groups == [CloseGroup("t", 1, [None], [Status.FAILED])]


def test_the_first_claim_is_granted_and_others_are_revoked() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)
    assert bench.claim(Stage.INIT, "b").commands == (Revoke("t.0", "b", "taken"),)
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)


def test_a_session_tells_how_long_it_waited_and_worked_and_who_has_it_in_hand() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    bench.now = 1_000
    bench.claim(Stage.INIT, "i1")
    bench.now = 3_000
    bench.give(InitFinished("f", "t.0", 1, "i1", runtime={"dir": "x"}, duration_ms=1_500))
    assert bench.table.granted_claims == {}
    bench.now = 7_000
    assert bench.claim(Stage.RUN, "early").commands == (Revoke("t.0", "early", "taken"),), "no ticket is out"
    bench.assign(Stage.RUN)
    assert bench.claim(Stage.RUN, "r1").commands == (Grant("t.0", 1, "r1", log_partition=0),)
    assert bench.table.granted_claims == {"w": {"r1": "t.0"}}
    assert bench.session().accounting == Accounting(init_queued_ms=1_000, init_ms=1_500, run_queued_ms=4_000)
    bench.now = 10_000
    bench.give(ClaimLost("t.0", "r1"))
    assert bench.session().accounting == Accounting(attempts_lost=1), "each attempt stands alone"


def test_a_build_is_told_all_that_run_and_evaluation_left_and_is_asked_for_again_a_minute_later() -> None:
    bench = Bench()
    plan = replace(PLAN, metadata=b'{"a": 1}')
    bench.give(replace(submitted(), plan=plan))
    bench.run()
    bench.give(RunFinished("f", "t.0", 1, "r1", Status.COMPLETED, 0, artifacts={"patch": "p", "both": "run"}))
    bench.assign(Stage.EVALUATE)
    bench.claim(Stage.EVALUATE, "e1")
    bench.now = 5_000
    bench.give(Evaluated("f", "t.0", 1, "e1", 0.5, {"c": 1.0}, artifacts={"both": "evaluation"}))
    build = bench.builds["t.0"]
    assert (build.reward, build.call_rewards, build.metadata) == (0.5, {"c": 1.0}, b'{"a": 1}')
    assert build.artifacts == {"patch": "p", "both": "evaluation"}
    bench.now += BUILDING_MS - 1
    assert bench.give(DeadlinePassed("t.0")).skipped == "early_deadline"
    bench.now += 1
    assert bench.give(DeadlinePassed("t.0")).records == (build,)


def test_what_failed_is_told_at_once_and_an_evaluation_that_failed_gives_no_reward() -> None:
    bench = Bench()
    bench.give(submitted(), submitted(task_id="u"))
    bench.evaluate()
    unjudged = SessionError("evaluate", Kind.EVALUATION, "raised", "no")
    bench.give(Evaluated("f", "t.0", 1, "e1", 1.0, {"c": 1.0}, error=unjudged))
    build = bench.builds["t.0"]
    assert (build.status, build.error, build.reward, build.call_rewards) == (Status.FAILED, unjudged, None, None)
    bench.run("u.0")
    unfit = SessionError("run", Kind.INPUT, "bad_input", "no such folder")
    bench.give(RunFinished("f", "u.0", 1, "r1", Status.FAILED, None, unfit))
    assert (bench.builds["u.0"].status, bench.builds["u.0"].error) == (Status.FAILED, unfit)


def test_every_earlier_attempts_claim_is_remembered_since_its_key_stays_closed() -> None:
    bench = Bench()
    bench.give(submitted())
    for attempt in (1, 2):
        bench.run(attempt=attempt)
        bench.give(ClaimLost("t.0", f"r{attempt}"))
    assert (bench.session().attempt, bench.session().past_claims) == (3, ["r1", "r2"])
    assert bench.session().accounting.attempts_lost == 2


def test_a_run_that_is_closed_has_two_seconds_from_then_on() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    bench.now = 10_000
    bench.give(CancelRequested("f", "t"))
    bench.now += CLOSING_MS - 1
    assert bench.give(DeadlinePassed("t.0")).skipped == "early_deadline"
    bench.now += 1
    bench.give(DeadlinePassed("t.0"))
    assert (bench.builds["t.0"].status, bench.builds["t.0"].accounting.run_ms) == (Status.CANCELLED, 10_000)


def test_a_claim_without_a_ticket_or_of_an_unknown_session_is_revoked() -> None:
    bench = Bench()
    assert bench.claim(Stage.INIT, "a").commands == (Revoke("t.0", "a", "ended"),)
    bench.give(submitted())
    assert bench.claim(Stage.INIT, "a").commands == (Revoke("t.0", "a", "taken"),)


def test_an_unclaimed_ticket_is_released_again_at_no_cost_and_the_old_one_still_counts() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    assert wants(bench.table) == {}
    bench.now = 10_000
    bench.give(*(DeadlinePassed(s) for s in bench.table.pop_due(bench.now)))
    assert wants(bench.table) == {(Stage.INIT, "default"): 1}
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)
    assert bench.session().spent == 0


def test_a_lost_run_is_the_next_attempt_with_its_key_closed() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    lost = bench.give(ClaimLost("t.0", "r1"))
    assert lost.commands == (Revoke("t.0", "r1", "lost"), CloseKey("t.0", "r1"), Discard("t.0", "i1", {"dir": "x"}))
    assert (bench.session().attempt, bench.session().spent, bench.session().phase) == (2, 1, Phase.QUEUED)
    assert bench.session().past_claims == ["r1"]
    bench.give(RunFinished("f", "t.0", 1, "r1", Status.COMPLETED, 0))
    assert bench.session().phase is Phase.QUEUED, "a zombie's report doesn't count"


def test_attempts_spent_fail_the_session_with_what_was_captured_after_its_key_is_closed() -> None:
    bench = Bench()
    bench.give(submitted())
    for attempt in (1, 2, 3):
        bench.run(attempt=attempt)
        bench.give(ClaimLost("t.0", f"r{attempt}"))
    assert bench.session().phase is Phase.CLOSING
    assert "t.0" not in bench.builds
    bench.now += 2_000
    bench.give(*(DeadlinePassed(s) for s in bench.table.pop_due(bench.now)))
    build = bench.builds["t.0"]
    assert (build.claim_id, build.status, build.reward) == ("r3", Status.FAILED, None)
    assert build.error is not None
    assert (build.error.kind, build.error.code) == (Kind.INFRA, "lost")


def test_a_lost_evaluation_is_an_evaluation_again_and_then_no_reward() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    for claim in ("e1", "e2", "e3"):
        bench.claim(Stage.EVALUATE, claim)
        assert bench.session().phase is Phase.EVALUATING
        bench.give(ClaimLost("t.0", claim))
        bench.assign(Stage.EVALUATE)
    assert (bench.builds["t.0"].reward, bench.session().attempt) == (None, 1)
    assert bench.builds["t.0"].status is Status.FAILED


def test_a_timed_out_run_is_evaluated_and_keeps_its_status_and_reward() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate(Status.TIMED_OUT, SessionError("run", Kind.BUDGET, "timeout", "over"))
    bench.give(Evaluated("f", "t.0", 1, "e1", reward=0.5))
    assert (bench.builds["t.0"].status, bench.builds["t.0"].reward) == (Status.TIMED_OUT, 0.5)


def test_a_handed_back_run_costs_no_attempt_but_starts_over() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    bench.give(HandedBack("f", "t.0", 1, "r1"))
    assert (bench.session().attempt, bench.session().spent) == (2, 0)


def test_cancel_of_a_running_session_builds_when_it_is_dead() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    stop = bench.give(CancelRequested("f", "t"))
    assert stop.commands == (Revoke("t.0", "r1", "cancelled"), CloseKey("t.0", "r1"))
    assert "t.0" not in bench.builds
    bench.give(Stopped("f", "t.0", 1, "r1"))
    assert (bench.builds["t.0"].status, bench.builds["t.0"].claim_id) == (Status.CANCELLED, "r1")


def test_cancel_before_the_task_is_known_is_honoured() -> None:
    bench = Bench()
    bench.give(CancelRequested("f", "t"), CancelRequested("f", "u", "u.1"), submitted(2), submitted(2, task_id="u"))
    assert {s: b.status for s, b in bench.builds.items()} == dict.fromkeys(("t.0", "t.1", "u.1"), Status.CANCELLED)
    assert bench.session("u.0").phase is Phase.QUEUED


def test_a_used_task_id_with_another_body_is_rejected_and_with_the_same_changes_nothing() -> None:
    bench = Bench()
    bench.give(submitted())
    assert bench.give(submitted()).skipped == "duplicate_task"
    assert isinstance(bench.give(submitted(body="b")).commands[0], RejectTask)


def test_a_dark_pool_gives_ready_sessions_back_at_no_cost() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.init()
    bench.give(PoolOffline("t.0"))
    assert (bench.session().phase, bench.session().attempt, bench.session().spent) == (Phase.QUEUED, 1, 0)
    assert bench.session().runtime is None


def test_a_ticket_from_before_the_dark_names_a_runtime_that_is_gone_and_counts_no_more() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.init()
    bench.assign(Stage.RUN)
    bench.give(PoolOffline("t.0"))
    assert (bench.session().phase, bench.session().spent) == (Phase.QUEUED, 0)
    bench.init(attempt=2)
    bench.assign(Stage.RUN)
    assert bench.claim(Stage.RUN, "old").commands == (Revoke("t.0", "old", "taken"),)
    assert isinstance(bench.claim(Stage.RUN, "new", attempt=2).commands[0], Grant)


def test_a_stale_deadline_entry_does_nothing() -> None:
    bench = Bench()
    bench.give(submitted())
    assert bench.give(DeadlinePassed("t.0")).skipped == "early_deadline"


def test_tickets_that_nobody_takes_for_days_cost_no_memory() -> None:
    bench = Bench()
    bench.give(submitted())
    for _ in range(3000):
        bench.assign(Stage.INIT)
        bench.now += TICKET_MS
        bench.give(*(DeadlinePassed(s) for s in bench.table.pop_due(bench.now)))
    assert bench.session().ticket_released_at is None
    assert bench.table.pending_instants < 1100
    bench.now = QUEUE_MS
    bench.give(*(DeadlinePassed(s) for s in bench.table.pop_due(bench.now)))
    assert bench.session().phase is Phase.BUILDING


DISCARDED = Discard("t.0", "i1", {"dir": "x"})


def test_a_runtime_that_nobody_has_in_hand_is_discarded_with_the_session() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.init()
    assert bench.give(CancelRequested("f", "t")).commands == (DISCARDED,)
    assert bench.session().runtime is not None, "a new owner says it again until the trajectory is out"
    bench.give(TrajectoryEmitted("f", "t.0", 1))
    assert bench.session().runtime is None


def test_a_runtime_in_hand_is_discarded_when_its_run_is_dead_or_given_up() -> None:
    for end in (Stopped("f", "t.0", 1, "r1"), DeadlinePassed("t.0")):
        bench = Bench()
        bench.give(submitted())
        bench.run()
        stop = bench.give(CancelRequested("f", "t"))
        assert DISCARDED not in stop.commands
        bench.now += CLOSING_MS
        assert bench.give(end).commands == (DISCARDED,)


def test_the_runtime_of_an_attempt_that_is_over_is_discarded_and_that_of_a_judged_session_is_its_workers() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    back = bench.give(HandedBack("f", "t.0", 1, "r1"))
    assert back.commands == (CloseKey("t.0", "r1"), DISCARDED)
    bench.run(attempt=2)
    bench.give(RunFinished("f", "t.0", 2, "r2", Status.COMPLETED, 0))
    bench.assign(Stage.EVALUATE)
    bench.claim(Stage.EVALUATE, "e2", attempt=2)
    assert bench.give(Evaluated("f", "t.0", 2, "e2", reward=1.0)).commands == ()


def test_a_cancelled_evaluation_is_stopped_before_its_runtime_goes_and_its_end_is_said_again() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    assert bench.give(CancelRequested("f", "t")).commands == (Revoke("t.0", "e1", "cancelled"), DISCARDED)
    assert bench.session().revoked_claims == ["e1"]


def test_a_runtime_that_was_made_too_late_is_discarded_unless_it_is_the_sessions_own() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    bench.claim(Stage.INIT, "slow")
    bench.give(ClaimLost("t.0", "slow"))
    assert bench.session().revoked_claims == ["slow"]
    late = bench.give(InitFinished("f", "t.0", 1, "slow", runtime={"dir": "slow"}))
    assert late.commands == (Discard("t.0", "slow", {"dir": "slow"}),)
    bench.init(attempt=2)
    assert bench.session().init_claim_id == "i2"
    again = bench.give(InitFinished("f", "t.0", 2, "i2", runtime={"dir": "x"}))
    assert (again.commands, again.skipped) == ((), "stale_claim")
