"""The rows of the newest sessions: the same whatever topic was read first, equal to a recount, and bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.health import Flag
from analytics.live.session_rows import MESSAGE_LIMIT, SessionRow, SessionRows
from tests.analytics.flagged import PROVOKED, good, good_calls
from topics.completions import Open
from topics.events import Claimed, Evaluated, HandedBack, InitFinished, RunFinished, TaskSubmitted
from topics.types.completion import CallOutcome
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState
from topics.types.tokens import count

NOW = 1_900_000_000_000
PLAN = Plan("default", 0, 3, 1, 1, 1, "pi", "prefix_merging", b"{}", None, "train", b"{}", run="night")
CALLS = good_calls().calls
BUILT = {flag: make() for flag, make in PROVOKED.items()}
Step = Callable[[SessionRows, int], None]


def task(task_id: str = "t", samples: int = 4) -> TaskState:
    return TaskState(task_id, samples, "hash", plan=PLAN)


def state(phase: Phase, index: int = 0, task_id: str = "t", **more: Any) -> SessionState:
    return SessionState(f"{task_id}.{index}", task_id, index, phase, since=0, **more)


def the_row(fold: SessionRows) -> SessionRow:
    (found,) = fold.rows(10)
    return found


def passing(method: str, record: object) -> Step:
    return lambda fold, at: getattr(fold, method)(record, at)


@st.composite
def a_session(draw: st.DrawFn, index: int) -> list[list[Step]]:
    """The records of session `t.<index>` by topic, in the order of each."""
    name = f"t.{index}"
    calls = [msgspec.structs.replace(call, session_id=name, outcome=draw(st.sampled_from(CallOutcome)))
             for call in CALLS[: draw(st.integers(0, 2))]]  # fmt: skip
    lost = [Open(name, 1, "lost"), *(msgspec.structs.replace(call, claim_id="lost") for call in calls)]
    log: list[Any] = [*(lost if draw(st.booleans()) else []), Open(name, 2, "claim"), *calls]
    facts = [Claimed("f", name, 1, Stage.INIT, "i", "w"), InitFinished("f", name, 1, "i")]
    states = [state(Phase.QUEUED, index), state(Phase.RUNNING, index, attempt=2)]
    outputs = []
    if draw(st.booleans()):
        reward = draw(st.sampled_from([None, 0.0, 1.0]))
        flag = draw(st.sampled_from(Flag))
        states.append(state(Phase.ENDED, index, attempt=2, status=Status.COMPLETED, reward=reward))
        outputs.append(msgspec.structs.replace(BUILT[flag], session_id=name, reward=reward))
    topics: dict[str, list[Any]] = {"row": states, "fact": facts, "call": log, "trajectory": outputs}
    return [[passing(method, record) for record in records] for method, records in topics.items()]


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[Step], list[Step]]:
    """The records of some sessions and of their task, twice, in orders that each topic may have been read in."""
    queues = [[passing("row", task())], [passing("fact", TaskSubmitted("f", "t", 4, "h", PLAN))]]
    for index in range(draw(st.integers(1, 3))):
        queues += draw(a_session(index))
    orders: list[list[Step]] = []
    for _ in range(2):
        waiting = [list(queue) for queue in queues]
        order: list[Step] = []
        while filled := [queue for queue in waiting if queue]:
            order.append(draw(st.sampled_from(filled)).pop(0))
        orders.append(order)
    return orders[0], orders[1]


def folded(steps: list[Step]) -> SessionRows:
    fold = SessionRows()
    for step in steps:
        step(fold, NOW)
    return fold


@given(interleaved())
def test_rows_do_not_depend_on_which_topic_was_read_first(orders: tuple[list[Step], list[Step]]) -> None:
    first, second = map(folded, orders)
    shown = [msgspec.to_builtins(row) for row in first.rows(10)]
    assert shown == [msgspec.to_builtins(row) for row in second.rows(10)]
    for row in shown:
        assert first.timeline(row["session_id"]) == second.timeline(row["session_id"])
        assert (row["harness"], row["run"], row["group_size"], row["submitted_at"]) == ("pi", "night", 4, NOW)


def test_a_running_session_counts_the_calls_of_its_newest_claim() -> None:
    fold = SessionRows()
    fold.row(state(Phase.RUNNING), NOW)
    calls = [
        msgspec.structs.replace(call, policy_version=version)
        for version, call in zip((3, 2), good_calls().calls, strict=True)
    ]
    fold.call(calls[0], NOW)
    assert (the_row(fold).calls, the_row(fold).sampled_tokens) == (None, None), "its Open wasn't read"
    fold.call(Open("t.0", 1, "claim"), NOW + 1)
    for n, call in enumerate(calls):
        fold.call(call, NOW + 2 + n)
    row = the_row(fold)
    assert (row.calls, row.sampled_tokens) == (2, sum(count(call.sampled) for call in calls))
    assert (row.policy_version, row.changed_at) == (3, NOW + 3)
    fold.call(Open("t.0", 2, "next"), NOW + 9)
    assert (the_row(fold).calls, the_row(fold).policy_version) == (0, None)


def test_flags_are_unknown_where_neither_the_trajectory_nor_the_calls_were_read() -> None:
    fold = SessionRows()
    fold.row(state(Phase.QUEUED), NOW)
    assert the_row(fold).flags == [], "it has no calls yet"
    fold.row(state(Phase.RUNNING), NOW)
    assert the_row(fold).flags is None
    fold.call(Open("t.0", 1, "claim"), NOW)
    assert the_row(fold).flags == []
    fold.row(state(Phase.ENDED, status=Status.COMPLETED, reward=1.0), NOW)
    assert the_row(fold).flags is None
    fold.trajectory(good(), NOW)
    assert the_row(fold).flags == []


@pytest.mark.parametrize("flag", Flag)
def test_a_row_has_the_flags_of_its_trajectory(flag: Flag) -> None:
    made = PROVOKED[flag]()
    fold = SessionRows()
    fold.row(state(Phase.ENDED, status=Status.COMPLETED, reward=made.reward), NOW)
    fold.trajectory(made, NOW)
    row = the_row(fold)
    assert flag.value in (row.flags or ())
    assert (row.sampled_tokens, row.trainable_tokens) == (made.stats.sampled_tokens, made.stats.trainable_tokens)
    assert row.masked_tokens == made.stats.sampled_tokens - made.stats.trainable_tokens


def test_an_error_is_shortened_and_that_of_the_evaluation_is_shown_if_there_is_no_other() -> None:
    fold = SessionRows()
    fold.row(state(Phase.ENDED, evaluation_error=SessionError("evaluate", Kind.EVALUATION, "raised", "x" * 9999)), NOW)
    error = the_row(fold).error
    assert error is not None
    assert (error.stage, error.code, len(error.message)) == ("evaluate", "raised", MESSAGE_LIMIT)


def test_the_timeline_tells_of_each_claim_what_it_waited_for_and_how_it_ended() -> None:
    fold = SessionRows()
    fold.row(task(), NOW)
    fold.fact(TaskSubmitted("f", "t", 4, "h", PLAN), NOW)
    broken = SessionError("run", Kind.INFRA, "lost", "gone")
    facts: list[tuple[int, Any]] = [
        (1, Claimed("f", "t.0", 1, Stage.INIT, "i", "w1")),
        (2, Claimed("f", "t.0", 1, Stage.INIT, "i", "w1")),  # sent again
        (3, InitFinished("f", "t.0", 1, "i")),
        (5, Claimed("f", "t.0", 1, Stage.RUN, "r", "w2")),
        (6, HandedBack("f", "t.0", 1, "r")),
        (7, Claimed("f", "t.0", 1, Stage.RUN, "r2", "w3")),
        (9, RunFinished("f", "t.0", 1, "r2", Status.FAILED, error=broken)),
        (9, Evaluated("f", "t.0", 1, "e", reward=1.0)),  # its claim was read by nobody
    ]
    for at, fact in facts:
        fold.fact(fact, NOW + at)
    found = [
        (one.stage, one.worker, *(None if at is None else at - NOW for at in (one.queued_at, one.claimed_at, one.finished_at)), one.outcome)
        for one in fold.timeline("t.0")
    ]  # fmt: skip
    assert found == [
        ("init", "w1", 0, 1, 3, "finished"),
        ("run", "w2", 3, 5, 6, "handed_back"),
        ("run", "w3", 3, 7, 9, "infra/lost"),
        ("evaluate", None, 9, None, 9, "finished"),
    ]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 100)), max_size=200))
def test_the_newest_rows_are_kept_and_no_others(changes: list[tuple[int, int]]) -> None:
    fold, newest = SessionRows(limit=20), dict[str, int]()
    for name, at in changes:
        fold.row(state(Phase.RUNNING, task_id=f"t{name}"), NOW + at)
        newest[f"t{name}.0"] = max(NOW + at, newest.get(f"t{name}.0", 0))
    expected = sorted(newest.items(), key=lambda one: (-one[1], one[0]))[:20]
    assert [(row.session_id, row.changed_at) for row in fold.rows(100)] == expected
    assert len(fold._entries) <= 22
    pages: list[SessionRow] = []
    while page := fold.rows(7, (pages[-1].changed_at, pages[-1].session_id) if pages else None):
        pages += page
    assert pages == fold.rows(100)


@given(st.lists(st.sampled_from("abcde"), max_size=30), st.integers(1, 4))
def test_changes_are_reported_until_a_reader_has_the_newest(changed: list[str], limit: int) -> None:
    fold, known, version = SessionRows(), dict[str, int](), 0
    for n, name in enumerate(changed):
        fold.row(state(Phase.RUNNING, task_id=name), NOW + n)
        if n % 3 == 0:
            rows, version = fold.changed_since(version, limit)
            known |= {row.session_id: row.changed_at for row in rows}
    while (found := fold.changed_since(version, limit))[0]:
        version = found[1]
        known |= {row.session_id: row.changed_at for row in found[0]}
    assert known == {row.session_id: row.changed_at for row in fold.rows(100)}
    assert found[1] == fold.version


def test_a_task_that_says_nothing_new_changes_no_row() -> None:
    fold = SessionRows()
    fold.row(task(), NOW)
    fold.row(state(Phase.RUNNING), NOW)
    before = fold.version
    fold.row(msgspec.structs.replace(task(), ended=1), NOW + 1)
    assert fold.version == before


def test_a_tombstone_ends_a_row() -> None:
    fold = SessionRows()
    fold.row(task(), NOW)
    fold.row(state(Phase.ENDED, reward=1.0), NOW)
    fold.trajectory(good(), NOW)
    fold.tombstone("session:t.0")
    fold.tombstone("task:t")
    assert fold.rows(10) == []
    assert fold.changed_since(0, 10)[0] == []
