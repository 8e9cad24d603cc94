"""Transitions of opened sessions, which users open for their own agents (protocol 28). Pure, as `decide` is.

    UNOPENED ─open─▶ RUNNING ─close, TTL, cancel─▶ CLOSING ─2 s─▶ BUILDING ─▶ ENDED
       ▲ │              │                                            ▲
       │ └─24 h, cancel─┼────────────────────────────────────────────┘
       └───withdrawn────┘

No worker takes part: there is no ticket, no lease and no second attempt. The TTL stands still while the fleet is paused. Every request is
answered with a Grant or a Revoke. The answer to an open names its claim id and is the same each time. The answer to a close names the
fact's id, because the end of the session's key would not show which close it answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from consumers.coordinator.commands import DeadlinePassed, Decision
from consumers.coordinator.endings import build, close_run, initial_sessions
from consumers.coordinator.grants import grant, start_run
from consumers.coordinator.state import Table
from topics.control import Grant, Revoke
from topics.events import SessionCloseRequested, SessionOpenRequested, SessionOpenWithdrawn
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState

HARNESS = "external"
BUILDER = "prefix_merging"


def open_requested(table: Table, fact: SessionOpenRequested, now: int) -> Decision:
    """Grant the next sample of an opened task, or the first sample of a new one."""
    session = _session_of_claim(table, fact.task_id, fact.claim_id)
    if session is not None:
        # The first Grant may have been lost on its way: send it again, and never a second sample.
        if session.phase is Phase.RUNNING and session.run_claim_id == fact.claim_id:
            return Decision(commands=(grant(table, session),))
        return _refused(session.session_id, fact.claim_id, "ended")
    task = table.task(fact.task_id)
    if task is None or task.body_hash is None:
        return _first_opened(table, task or TaskState(fact.task_id), fact, now)
    if (reason := _mismatch(task, fact)) is not None:
        return _refused(fact.task_id, fact.claim_id, reason)
    return _next_sample(table, task, table.sessions_of(fact.task_id), fact, now)


def withdrawn(table: Table, fact: SessionOpenWithdrawn, now: int) -> Decision:
    """The sample goes to the next open. The claim is remembered, because its open may arrive once more."""
    session = _session_of_claim(table, fact.task_id, fact.claim_id)
    if session is None or session.run_claim_id != fact.claim_id or session.phase is not Phase.RUNNING:
        return Decision(skipped="nothing_to_withdraw")
    task = table.task_of(session)
    assert task.opened_at is not None, "only opened sessions are withdrawn"
    free = SessionState(
        session.session_id,
        session.task_id,
        session.sample_index,
        Phase.UNOPENED,
        task.opened_at,
        past_claims=[*session.past_claims, fact.claim_id],
    )
    return Decision(sessions=(free,))


def close_requested(table: Table, fact: SessionCloseRequested, now: int) -> Decision:
    """The session is COMPLETED, with the first close's reward. The builder, which has the calls, drops the reward if there is none."""
    session = table.session(fact.session_id)
    if session is None:
        return _refused(fact.session_id, fact.fact_id, "unknown")
    if table.task_of(session).opened_at is None:
        return _refused(fact.session_id, fact.fact_id, "submitted")
    match session.phase:
        case Phase.UNOPENED:
            return _refused(fact.session_id, fact.fact_id, "unopened")
        case Phase.RUNNING:
            closed = replace(session, reward=fact.reward, reward_needs_call=not fact.is_forced)
            ended = close_run(closed, now, Status.COMPLETED, None, reason="ended")
            accepted = Grant(session.session_id, session.attempt, fact.fact_id)
            return Decision(sessions=ended.sessions, commands=(*ended.commands, accepted))
        case _:
            return _refused(fact.session_id, fact.fact_id, "ended")


def expired(table: Table, session: SessionState, event: DeadlinePassed, now: int) -> Decision:
    """The TTL is over; what was captured counts."""
    assert session.ttl_ms is not None, "an opened session has a TTL"
    message = f"nobody closed it within its TTL of {session.ttl_ms / 1000:g} s"
    error = SessionError(Stage.RUN.value, Kind.BUDGET, "timeout", message)
    return close_run(session, now, Status.TIMED_OUT, error, reason="deadline")


def never_opened(table: Table, session: SessionState, event: DeadlinePassed, now: int) -> Decision:
    """The sample ends so that its group can end."""
    message = "nobody opened this sample within a day of the task's first"
    error = SessionError("queue", Kind.INPUT, "unopened", message)
    return build(table.task_of(session), replace(session, status=Status.CANCELLED, error=error), now)


def _session_of_claim(table: Table, task_id: str, claim_id: str) -> SessionState | None:
    """The opened session that this claim is or was granted. Workers' claims aren't looked up."""
    task = table.task(task_id)
    if task is None or task.opened_at is None:
        return None
    sessions = table.sessions_of(task_id)
    return next((s for s in sessions if s.run_claim_id == claim_id or claim_id in s.past_claims), None)


def _mismatch(task: TaskState, fact: SessionOpenRequested) -> str | None:
    """The reason why an open doesn't fit its task; None if it fits."""
    if task.opened_at is None:
        return "submitted"
    if fact.num_samples not in (None, task.num_samples):
        return "samples"
    if task.plan is not None and fact.mode != task.plan.mode:
        return "mode"
    if task.plan is not None and fact.run not in (None, task.plan.run):
        return "run"
    return None


def _first_opened(table: Table, early: TaskState, fact: SessionOpenRequested, now: int) -> Decision:
    """A new task. Samples that were cancelled beforehand end as those of a submitted task do."""
    task = replace(early, num_samples=fact.num_samples or 1, body_hash="", plan=plan(fact), opened_at=now)
    begun = initial_sessions(table, task, Phase.UNOPENED, now)
    opened = _next_sample(table, task, begun.sessions, fact, now)
    return Decision(
        tasks=(task,),
        sessions=(*begun.sessions, *opened.sessions),
        records=(*begun.records, *opened.records),
        commands=opened.commands,
    )


def _next_sample(
    table: Table, task: TaskState, samples: Sequence[SessionState], fact: SessionOpenRequested, now: int
) -> Decision:
    free = next((session for session in samples if session.phase is Phase.UNOPENED), None)
    if free is None:
        return _refused(task.task_id, fact.claim_id, "cancelled" if task.cancelled else "taken")
    running = replace(
        free, phase=Phase.RUNNING, since=now, claim_id=fact.claim_id, ttl_ms=fact.ttl_ms, label=fact.label
    )
    return start_run(table, running, now)


def _refused(name: str, claim_id: str, reason: str) -> Decision:
    """`name`: the session's id, or the task's if no session was found."""
    return Decision(commands=(Revoke(name, claim_id, reason),), skipped=f"refused_{reason}")


def plan(fact: SessionOpenRequested) -> Plan:
    """The plan of the task that this first open makes: it needs no workers."""
    return Plan(
        pool="",
        priority=0,
        max_attempts=1,
        init_budget_s=0,
        run_budget_s=0,
        evaluate_budget_s=0,
        harness=HARNESS,
        builder=BUILDER,
        builder_config=b"{}",
        output="eval" if fact.mode == "eval" else None,
        mode=fact.mode,
        metadata=b"{}",
        run=fact.run,
    )
