"""The fold behind `polar watch`: its counts are those of a recount, its rates those of the records' own minute, its memory bounded."""

from __future__ import annotations

import statistics
import tracemalloc
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.live.fold import ERRORS, MESSAGE_LIMIT, REMEMBER_MS, Fold, Snapshot
from analytics.live.rates import Minute
from analytics.live.session_counts import RECENT
from topics.events import InitFinished, TrajectoryEmitted
from topics.fleet import FleetState, PolicyVersion
from topics.log.liveness import LEASE_MS
from topics.sessions import Row, key_of
from topics.types.completion import CallError, CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState
from topics.types.tokens import pack_ids
from topics.workers import Heartbeat, Probe, StageSlots

NOW = 1_900_000_000_000


def plan(pool: str) -> Plan:
    return Plan(pool, 0, 3, 1.0, 1.0, 1.0, "shell", "prefix_merging", b"{}", None, "train", b"{}")


def task(task_id: str = "t", pool: str = "default", samples: int = 4) -> TaskState:
    return TaskState(task_id, samples, "hash", plan=plan(pool))


def session(index: int, phase: Phase, task_id: str = "t", **more: Any) -> SessionState:
    return SessionState(f"{task_id}.{index}", task_id, index, phase, since=0, **more)


def folded(*rows: Row, at: int = NOW) -> Fold:
    fold = Fold()
    for row in rows:
        fold.row(row, at)
    return fold


def load(snapshot: Snapshot, stage: Stage, pool: str = "default") -> dict[str, Any]:
    (found,) = (one for one in snapshot.stages if (one.stage, one.pool) == (stage, pool))
    return msgspec.structs.asdict(found)


# --- counts


tasks_of = st.builds(task, st.sampled_from("abc"), st.sampled_from(["default", "gpu"]), st.just(4))
sessions_of = st.builds(
    session,
    st.integers(0, 3),
    st.sampled_from(Phase),
    st.sampled_from("abc"),
    status=st.none() | st.sampled_from(Status),
    reward=st.none() | st.floats(-2, 2),
)
changes = st.lists(
    tasks_of | sessions_of | st.builds(key_of, tasks_of) | st.builds(key_of, sessions_of) | st.just("offset")
)


@given(changes)
def test_counts_are_those_of_a_recount_whatever_the_order(changed: list[Row | str]) -> None:
    fold = Fold()
    rows: dict[str, Row] = {}
    for change in changed:
        if isinstance(change, str):
            fold.tombstone(change)
            rows.pop(change, None)
        else:
            fold.row(change, NOW)
            rows[key_of(change)] = change
    found = fold.snapshot(NOW)
    sessions = [row for row in rows.values() if isinstance(row, SessionState)]
    pools = {row.task_id: row.plan.pool for row in rows.values() if isinstance(row, TaskState) and row.plan}
    assert found.tasks == len(pools)
    assert found.phases == Counter(row.phase.value for row in sessions)
    assert found.statuses == Counter(row.status.value for row in sessions if row.phase is Phase.ENDED and row.status)
    ready = Counter(pools[row.task_id] for row in sessions if row.phase is Phase.READY and row.task_id in pools)
    assert {one.pool: one.waiting for one in found.stages if one.stage is Stage.RUN and one.waiting} == ready
    for group in found.groups:
        of = {row.sample_index: row for row in sessions if row.task_id == group.task_id}
        assert [of[n].reward if n in of else None for n in range(group.num_samples)] == group.rewards
        assert group.ended == sum(row.phase is Phase.ENDED for row in of.values())
        known = [reward for reward in group.rewards if reward is not None]
        assert group.mean == (pytest.approx(statistics.fmean(known)) if known else None)
        assert group.std == (pytest.approx(statistics.pstdev(known)) if known else None)
    msgspec.json.encode(found)


def test_a_pool_without_workers_is_shown_while_sessions_wait_in_it() -> None:
    rows: list[Row] = [task(pool="gpu"), *(session(n, Phase.QUEUED) for n in range(3)), session(3, Phase.READY)]
    found = folded(*rows).snapshot(NOW)
    figures = {"workers": 0, "slots": 0, "busy": 0, "waiting": 3, "started": 0, "finished": 0}
    assert load(found, Stage.INIT, "gpu") | {"started": 0} == {"stage": Stage.INIT, "pool": "gpu", **figures}
    assert load(found, Stage.RUN, "gpu")["waiting"] == 1
    ended = folded(task(pool="gpu"), session(0, Phase.ENDED, status=Status.COMPLETED)).snapshot(NOW)
    assert ended.stages == []


def test_groups_are_those_that_moved_last_and_a_queued_one_has_not_moved() -> None:
    fold = Fold()
    for n in range(3 * RECENT):
        fold.row(task(f"t{n}", samples=2), NOW + n)
        fold.row(session(0, Phase.ENDED, f"t{n}", status=Status.COMPLETED, reward=1.0), NOW + n)
        fold.row(session(1, Phase.QUEUED, f"t{n}"), NOW + 1000 - n)
    groups = fold.snapshot(NOW).groups
    assert [group.task_id for group in groups] == [f"t{n}" for n in reversed(range(2 * RECENT, 3 * RECENT))]
    fold.row(session(1, Phase.ENDED, "t0", status=Status.COMPLETED, reward=0.0), NOW + 5000)
    first = fold.snapshot(NOW).groups[0]
    assert (first.task_id, first.rewards, first.is_finished) == ("t0", [1.0, 0.0], True)
    assert (first.mean, first.std) == (0.5, 0.5)


def test_a_session_costs_a_few_bytes() -> None:
    samples = 1000
    fold = folded(task(samples=samples))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n in range(samples):
        fold.row(session(n, Phase.ENDED, status=Status.COMPLETED, reward=0.5), NOW)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / samples < 32


# --- rates


@given(st.lists(st.tuples(st.integers(NOW - 10_000_000, NOW), st.integers(0, 100))))
def test_a_minute_holds_what_came_in_it_whatever_the_order(added: list[tuple[int, int]]) -> None:
    minute = Minute()
    for at, amount in added:
        minute.add(at, amount)
    since = NOW // 1000 - 60
    assert minute.total(NOW) == sum(amount for at, amount in added if at // 1000 > since)


def test_calls_are_counted_by_their_outcome_and_fade_after_a_minute() -> None:
    fold = Fold()
    for outcome in (CallOutcome.ANSWERED, CallOutcome.ANSWERED, CallOutcome.FAILED, CallOutcome.ABANDONED):
        fold.call(a_call(outcome), NOW)
    calls = fold.snapshot(NOW).calls
    assert (calls.answered, calls.failed, calls.abandoned, calls.sampled_tokens) == (2, 1, 1, 6)
    later = fold.snapshot(NOW + 61_000).calls
    assert (later.answered, later.failed, later.abandoned, later.sampled_tokens) == (0, 0, 0, 0)


def a_call(outcome: CallOutcome) -> Completion:
    is_answered = outcome is CallOutcome.ANSWERED
    return Completion(
        "c", "t.0", 1, "claim", outcome, "openai_chat", "vllm", 0, 1, TokenDelta(b""), MessageDelta(b"[]"),
        sampled=pack_ids([1, 2, 3]) if is_answered else b"",
        error=None if is_answered else CallError("upstream", "the engine said 500", 500),
    )  # fmt: skip


def test_what_a_stage_started_and_finished_is_told_by_the_phases_that_sessions_pass() -> None:
    row = session(0, Phase.RUNNING)
    fold = folded(task(), session(0, Phase.QUEUED), session(0, Phase.INIT), session(0, Phase.READY), row, row)
    found = fold.snapshot(NOW)
    moved = [(load(found, stage)["started"], load(found, stage)["finished"]) for stage in Stage]
    assert moved == [(1, 1), (1, 0), (0, 0)]
    fold.row(session(0, Phase.ENDED, status=Status.COMPLETED), NOW)
    fold.row(session(0, Phase.ENDED, status=Status.COMPLETED), NOW)
    fold.fact(TrajectoryEmitted("f", "t.0", 1, trainable_tokens=40), NOW)
    fold.row(session(1, Phase.QUEUED), NOW)
    found = fold.snapshot(NOW)
    assert load(found, Stage.RUN)["finished"] == 1
    assert (found.ended, found.trainable_tokens) == (1, 40)
    assert (fold.snapshot(NOW + 61_000).ended, fold.snapshot(NOW + 61_000).trainable_tokens) == (0, 0)


# --- processes


def a_beat(worker_id: str, *, free: int = 3, role: str = "worker", leaving: bool = False) -> Heartbeat:
    slots = [StageSlots(Stage.RUN, "default", 8, free, [0])] if role == "worker" else []
    return Heartbeat(worker_id, role, "host", 1, slots, leaving=leaving)


def test_a_process_lives_for_six_seconds_and_one_that_leaves_is_gone_at_once() -> None:
    fold = Fold()
    for n, beat in enumerate([a_beat("w1"), a_beat("w2", free=8), a_beat("p", role="proxy")]):
        fold.sign(beat, NOW + n)
    fold.sign(Probe("c"), NOW)
    found = fold.snapshot(NOW + LEASE_MS)
    assert found.processes == {"proxy": 1, "worker": 2}
    assert [load(found, Stage.RUN)[field] for field in ("workers", "slots", "busy")] == [2, 16, 5]
    assert fold.snapshot(NOW + LEASE_MS + 1).processes == {"proxy": 1, "worker": 1}
    fold.sign(a_beat("w2", leaving=True), NOW + 10)
    assert fold.snapshot(NOW + 10).processes == {"proxy": 1, "worker": 1}
    fold.sign(a_beat("p", role="proxy"), NOW + 2 * REMEMBER_MS)
    assert len(fold._beats) == 1


def test_an_outage_gives_those_that_lived_before_it_another_lease() -> None:
    fold = Fold()
    fold.sign(a_beat("dead"), NOW - 2 * LEASE_MS)
    fold.sign(a_beat("alive"), NOW)
    fold.back(NOW + 1000, NOW + 60_000)
    assert fold.snapshot(NOW + 61_000).processes == {"worker": 1}
    assert fold.snapshot(NOW + 67_000).processes == {}


def test_the_fleets_state_is_the_newest() -> None:
    fold = Fold()
    assert (fold.snapshot(NOW).paused, fold.snapshot(NOW).policy_version) == (False, None)
    fold.fleet(FleetState(1, paused=True), NOW)
    fold.fleet(FleetState(2, paused=True, draining=True), NOW + 1)
    fold.fleet(PolicyVersion(7), NOW + 2)
    fold.fleet(PolicyVersion(9, "small"), NOW + 3)
    found = fold.snapshot(NOW + 4)
    assert (found.paused, found.paused_since, found.draining, found.fleet_generation) == (True, NOW, True, 2)
    assert found.policy_version == 7
    fold.fleet(FleetState(3), NOW + 5)
    found = fold.snapshot(NOW + 6)
    assert (found.paused, found.paused_since, found.draining, found.fleet_generation) == (False, None, False, 3)


# --- errors


def an_error(code: str = "broken", message: str = "no such thing") -> SessionError:
    return SessionError("init", Kind.INFRA, code, message)


def test_an_error_counts_once_from_when_it_was_first_told() -> None:
    fold = folded(task(), session(0, Phase.BUILDING, error=an_error()), at=NOW + 2)
    fold.row(session(0, Phase.ENDED, status=Status.FAILED, error=an_error()), NOW + 3)
    fold.fact(InitFinished("f", "t.0", 1, "c", error=an_error(message="x" * 2 * MESSAGE_LIMIT)), NOW + 1)
    (told,) = fold.snapshot(NOW).errors
    assert (told.session_id, told.stage, told.kind, told.code, told.at) == ("t.0", "init", "infra", "broken", NOW + 1)
    assert len(told.message) == MESSAGE_LIMIT
    fold.fact(InitFinished("g", "t.0", 2, "d", error=an_error()), NOW + 4)
    assert [error.attempt for error in fold.snapshot(NOW).errors] == [2, 1]


def test_the_newest_errors_are_kept_and_a_call_that_failed_is_one() -> None:
    fold = Fold()
    for n in range(5 * ERRORS):
        fold.row(session(0, Phase.ENDED, f"t{n}", error=an_error()), NOW + n)
    fold.call(a_call(CallOutcome.FAILED), NOW + 5 * ERRORS)
    fold.call(a_call(CallOutcome.ABANDONED), NOW + 6 * ERRORS)
    errors = fold.snapshot(NOW).errors
    assert (errors[0].stage, errors[0].kind, errors[0].code) == ("call", "failed", "upstream")
    assert [error.at - NOW for error in errors] == list(range(5 * ERRORS, 4 * ERRORS, -1))
