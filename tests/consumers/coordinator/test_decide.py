"""What a session carries from input to input. `test_table` shows which phase, records and commands follow from each input."""

from __future__ import annotations

from msgspec.structs import replace

from consumers.coordinator import commands
from consumers.coordinator.deadlines import BUILDING_MS, EXPIRY_MS, QUEUE_MS, TICKET_MS
from consumers.coordinator.endings import REASON_LIMIT, repeated_commands
from tests.consumers.coordinator.bench import PLAN, Bench, submitted, wants
from topics import events
from topics.completions import CloseGroup
from topics.control import CloseKey, Discard, Grant, Revoke
from topics.environment.claim_keys import new_claim_id, ticket_id
from topics.types.errors import Kind, SessionError
from topics.types.session import Accounting, Phase, Stage, Status


def test_the_plain_way_ends_with_one_build_and_a_group() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    assert bench.give(events.Evaluated("f", "t.0", 1, "e1", reward=1.0)).records == (bench.builds["t.0"],)
    build = bench.builds["t.0"]
    assert (build.claim_id, build.reward, build.run) == ("r1", 1.0, "night")
    bench.give(events.TrajectoryEmitted("f", "t.0", 1))
    assert bench.groups == [CloseGroup("t", 1, [1.0], [Status.COMPLETED], run="night")]
    assert bench.session().phase is Phase.ENDED
    bench.give(events.GroupEmitted("f", "t"))
    assert bench.table.pop_expired(EXPIRY_MS) == ["t"]
    assert bench.give(commands.TaskExpired("t")).skipped == "not_forgettable"
    bench.now = EXPIRY_MS
    bench.give(commands.TaskExpired("t"))
    assert bench.table.task("t") is None
    assert bench.table.session("t.0") is None


def test_a_build_that_failed_is_what_the_table_and_the_group_say() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    bench.give(events.Evaluated("f", "t.0", 1, "e1", reward=1.0))
    error = SessionError("build", Kind.INPUT, "builder_input", "no such setting")
    bench.give(events.TrajectoryEmitted("f", "t.0", 1, status=Status.FAILED, error=error))
    assert (bench.session().status, bench.session().error, bench.session().reward) == (Status.FAILED, error, None)
    assert bench.groups == [CloseGroup("t", 1, [None], [Status.FAILED], run="night")]


def test_a_session_accounts_for_its_waiting_and_working_times_and_knows_its_claim() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    bench.now = 1_000
    bench.claim(Stage.INIT, "i1")
    bench.now = 3_000
    bench.give(events.InitFinished("f", "t.0", 1, "i1", runtime={"dir": "x"}, duration_ms=1_500))
    assert bench.table.granted_claims == {}
    bench.now = 7_000
    assert bench.claim(Stage.RUN, "early").commands == (Revoke("t.0", "early", "taken"),), "no ticket is out"
    bench.assign(Stage.RUN)
    assert bench.claim(Stage.RUN, "r1").commands == (Grant("t.0", 1, "r1", log_partition=0),)
    assert bench.table.granted_claims == {"w": {"r1": "t.0"}}
    assert bench.session().accounting == Accounting(init_queued_ms=1_000, init_ms=1_500, run_queued_ms=4_000)
    bench.now = 10_000
    bench.give(commands.ClaimLost("t.0", "r1"))
    assert bench.session().accounting == Accounting(attempts_lost=1), "each attempt stands alone"


def test_a_row_tells_what_the_runtime_of_its_attempt_does_not_enforce() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    bench.claim(Stage.INIT, "i1")
    bench.give(events.InitFinished("f", "t.0", 1, "i1", runtime={"backend": "landlock"}, unenforced=["udp"]))
    assert (bench.session().backend, bench.session().unenforced) == ("landlock", ["udp"])
    bench.assign(Stage.RUN)
    bench.claim(Stage.RUN, "r1")
    bench.give(commands.ClaimLost("t.0", "r1"))
    assert (bench.session().attempt, bench.session().backend, bench.session().unenforced) == (2, None, None)


def test_what_was_lost_of_a_run_stays_known_until_its_evaluation() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    bench.give(events.RunFinished("f", "t.0", 1, "r1", Status.COMPLETED, 0, lost_artifacts=["patch"], warning="small"))
    assert (bench.session().lost_artifacts, bench.session().run_warning) == (["patch"], "small")
    bench.assign(Stage.EVALUATE)
    bench.claim(Stage.EVALUATE, "e1")
    assert bench.session().lost_artifacts == ["patch"]


def test_a_build_holds_the_results_of_run_and_evaluation_and_is_repeated_after_a_minute() -> None:
    bench = Bench()
    late = SessionError("run", Kind.BUDGET, "timeout", "over")
    bench.give(replace(submitted(), plan=replace(PLAN, metadata=b'{"a": 1}')))
    bench.run()
    bench.give(
        events.RunFinished("f", "t.0", 1, "r1", Status.TIMED_OUT, 0, late, artifacts={"patch": "p", "both": "run"})
    )
    bench.assign(Stage.EVALUATE)
    bench.claim(Stage.EVALUATE, "e1")
    bench.now = 5_000
    bench.give(events.Evaluated("f", "t.0", 1, "e1", 0.5, {"c": 1.0}, artifacts={"both": "evaluation"}, reason="half"))
    build = bench.builds["t.0"]
    assert build.reward_reason == "half"
    assert (build.status, build.error) == (Status.TIMED_OUT, late), (
        "a run that timed out is evaluated, and keeps its status"
    )
    assert (build.reward, build.call_rewards, build.metadata) == (0.5, {"c": 1.0}, b'{"a": 1}')
    assert build.artifacts == {"patch": "p", "both": "evaluation"}
    bench.now += BUILDING_MS - 1
    assert bench.give(commands.DeadlinePassed("t.0")).skipped == "early_deadline"
    bench.now += 1
    assert bench.give(commands.DeadlinePassed("t.0")).records == (build,)


def test_a_run_refused_for_its_input_is_built_at_once_and_a_failed_evaluation_gives_no_reward() -> None:
    bench = Bench()
    bench.give(submitted(), submitted(task_id="u"))
    bench.evaluate()
    unevaluated = SessionError("evaluate", Kind.EVALUATION, "raised", "no")
    bench.give(events.Evaluated("f", "t.0", 1, "e1", 1.0, {"c": 1.0}, error=unevaluated))
    build = bench.builds["t.0"]
    assert (build.status, build.error, build.reward, build.call_rewards) == (Status.FAILED, unevaluated, None, None)
    assert build.reward_reason == "evaluation/raised: no"
    bench.run("u.0")
    unfit = SessionError("run", Kind.INPUT, "bad_input", "no such folder")
    bench.give(events.RunFinished("f", "u.0", 1, "r1", Status.FAILED, None, unfit))
    assert (bench.builds["u.0"].status, bench.builds["u.0"].error) == (Status.FAILED, unfit)


def test_a_failed_evaluation_is_known_beside_the_runs_own_error() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    wrong = SessionError("run", Kind.AGENT, "exit_code", "3")
    bench.give(events.RunFinished("f", "t.0", 1, "r1", Status.FAILED, 3, wrong))
    bench.assign(Stage.EVALUATE)
    bench.claim(Stage.EVALUATE, "e1")
    raised = SessionError("evaluate", Kind.EVALUATION, "evaluator_raised", "x" * 4096)
    bench.give(events.Evaluated("f", "t.0", 1, "e1", error=raised, reason="never read"))
    row = bench.table.session("t.0")
    assert row is not None
    assert (row.error, row.evaluation_error, row.reward) == (wrong, raised, None)
    assert bench.builds["t.0"].reward_reason == ("evaluation/evaluator_raised: " + "x" * 4096)[:REASON_LIMIT]


def test_a_closed_run_has_two_seconds_from_then_on() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.run()
    bench.now = 10_000
    bench.give(events.CancelRequested("f", "t"))
    bench.now += 1_999
    assert bench.give(commands.DeadlinePassed("t.0")).skipped == "early_deadline"
    bench.now += 1
    bench.give(commands.DeadlinePassed("t.0"))
    assert (bench.builds["t.0"].status, bench.builds["t.0"].accounting.run_ms) == (Status.CANCELLED, 10_000)


def test_an_unclaimed_ticket_is_released_again_at_no_cost_and_the_old_one_still_counts() -> None:
    bench = Bench()
    assert bench.claim(Stage.INIT, "a").commands == (Revoke("t.0", "a", "ended"),), "an unknown session"
    bench.give(submitted())
    bench.assign(Stage.INIT)
    assert wants(bench.table) == {}
    bench.pass_time(10_000)
    assert wants(bench.table) == {(Stage.INIT, "default"): 1}
    assert bench.claim(Stage.INIT, "a").commands == (Grant("t.0", 1, "a"),)
    assert bench.session().spent == 0


def test_attempts_spent_fail_the_session_with_what_was_captured_after_its_key_is_closed() -> None:
    bench = Bench()
    bench.give(submitted())
    for attempt in (1, 2, 3):
        bench.run(attempt=attempt)
        bench.give(commands.ClaimLost("t.0", f"r{attempt}"))
        assert bench.session().accounting.attempts_lost == min(attempt, 2)
    assert bench.session().phase is Phase.CLOSING
    assert (bench.session().attempt, bench.session().past_claims) == (3, ["r1", "r2"]), "their keys stay closed"
    assert "t.0" not in bench.builds
    bench.pass_time(2_000)
    build = bench.builds["t.0"]
    assert (build.claim_id, build.status, build.reward) == ("r3", Status.FAILED, None)
    assert build.error is not None
    assert (build.error.kind, build.error.code) == (Kind.INFRA, "lost")


def test_cancel_before_the_task_is_known_is_honoured() -> None:
    bench = Bench()
    bench.give(
        events.CancelRequested("f", "t"),
        events.CancelRequested("f", "u", "u.1"),
        submitted(2),
        submitted(2, task_id="u"),
    )
    assert {s: b.status for s, b in bench.builds.items()} == dict.fromkeys(("t.0", "t.1", "u.1"), Status.CANCELLED)
    assert bench.session("u.0").phase is Phase.QUEUED


def test_a_used_task_id_with_another_body_is_rejected_and_with_the_same_changes_nothing() -> None:
    bench = Bench()
    bench.give(submitted())
    assert bench.give(submitted()).skipped == "duplicate_task"
    bench.give(events.SessionOpenRequested("f", "opened", "a", 60_000))
    for fact in (submitted(body="b"), submitted(task_id="opened")):
        rejected = bench.give(fact)
        assert [type(command) for command in rejected.commands] == [commands.RejectTask]
        assert (rejected.tasks, rejected.sessions) == ((), ())


def test_a_ticket_from_before_its_pool_was_offline_names_a_lost_runtime_and_counts_no_more() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.init()
    bench.give(commands.PoolOffline("t.0"))
    assert (bench.session().attempt, bench.session().runtime) == (1, None)
    bench.init()
    bench.assign(Stage.RUN)
    bench.give(commands.PoolOffline("t.0"))
    assert (bench.session().phase, bench.session().spent) == (Phase.QUEUED, 0)
    bench.init(attempt=2)
    bench.assign(Stage.RUN)
    assert bench.claim(Stage.RUN, "old").commands == (Revoke("t.0", "old", "taken"),)
    assert isinstance(bench.claim(Stage.RUN, "new", attempt=2).commands[0], Grant)


def test_tickets_that_nobody_takes_for_days_cost_no_memory() -> None:
    bench = Bench()
    bench.give(submitted())
    for _ in range(3000):
        bench.assign(Stage.INIT)
        bench.pass_time(TICKET_MS)
    assert bench.session().ticket_released_at is None
    assert bench.table.pending_instants < 1100
    bench.pass_time(QUEUE_MS - bench.now)
    assert bench.session().phase is Phase.BUILDING


def test_a_runtime_that_comes_too_late_is_discarded_unless_the_session_uses_it() -> None:
    bench = Bench()
    bench.give(submitted())
    bench.assign(Stage.INIT)
    bench.claim(Stage.INIT, "slow")
    bench.give(commands.ClaimLost("t.0", "slow"))
    assert bench.session().revoked_claims == ["slow"]
    late = bench.give(events.InitFinished("f", "t.0", 1, "slow", runtime={"dir": "slow"}))
    assert late.commands == (Discard("t.0", "slow", {"dir": "slow"}),)
    bench.init(attempt=2)
    assert bench.session().init_claim_id == "i2"
    again = bench.give(events.InitFinished("f", "t.0", 2, "i2", runtime={"dir": "x"}))
    assert (again.commands, again.skipped) == ((), "stale_claim")


def test_a_runtime_and_revoked_claims_are_kept_until_the_trajectory_is_written() -> None:
    """So that a new owner repeats the commands that end them."""
    bench = Bench()
    bench.give(submitted())
    bench.evaluate()
    bench.give(events.CancelRequested("f", "t"))
    assert (bench.session().revoked_claims, bench.session().runtime) == (["e1"], {"dir": "x"})
    assert repeated_commands(bench.session()) == [
        Revoke("t.0", "e1", "ended"),
        Revoke("t.0", "r1", "ended"),
        CloseKey("t.0", "r1"),
        Discard("t.0", "i1", {"dir": "x"}),
    ]
    bench.give(events.TrajectoryEmitted("f", "t.0", 1))
    assert (bench.session().revoked_claims, bench.session().runtime) == ([], None)
    assert repeated_commands(bench.session()) == []


def test_a_claim_of_an_earlier_wait_is_not_granted_again() -> None:
    """Someone sends a `Claimed` again, unchanged and with its MAC, after its claim was handed back."""
    bench = Bench(now=1_000)
    bench.give(submitted())
    bench.assign(Stage.INIT)
    first = new_claim_id(Stage.INIT, ticket_id(bench.session().since, bench.session().releases))
    assert bench.claim(Stage.INIT, first).commands == (Grant("t.0", 1, first),)
    bench.now = 2_000
    bench.give(events.HandedBack("f", "t.0", 1, first))
    bench.assign(Stage.INIT)
    assert bench.claim(Stage.INIT, first).commands == (Revoke("t.0", first, "taken"),)
    second = new_claim_id(Stage.INIT, ticket_id(bench.session().since, bench.session().releases))
    assert bench.claim(Stage.INIT, second).commands == (Grant("t.0", 1, second),)
