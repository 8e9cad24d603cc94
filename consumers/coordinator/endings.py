"""How a session begins, starts over and ends: the steps that several transitions share. Pure, as `decide` is."""

from __future__ import annotations

from msgspec.structs import replace

from consumers.coordinator.commands import Command, Decision
from consumers.coordinator.state import Table
from topics.completions import Build, CloseGroup, Open
from topics.control import CloseKey, Discard, Revoke
from topics.types.errors import SessionError
from topics.types.session import Accounting, Phase, SessionState, Status, TaskState, session_id_of

EVALUATIONS = 3
"""Attempts at an evaluation before its reward is null (protocol 15)."""
REASON_LIMIT = 1000
"""Characters of the reason for a null reward; `error` has the whole message, unless the run's own error takes its place."""


def initial_sessions(table: Table, task: TaskState, phase: Phase, now: int) -> Decision:
    """The sessions of a task that has just become known, in `phase`; sessions that were cancelled before that are built at once.

    Sessions that exist are left unchanged: the last owner died while it wrote them (`batch`).
    """
    sessions: list[SessionState] = []
    records: list[Open | Build | CloseGroup] = []
    for index in range(task.num_samples):
        session = SessionState(session_id_of(task.task_id, index), task.task_id, index, phase, now)
        if (written := table.session(session.session_id)) is not None:
            sessions.append(written)
        elif task.cancelled or session.session_id in task.cancelled_sessions:
            built = build(task, replace(session, status=Status.CANCELLED), now)
            sessions.extend(built.sessions)
            records.extend(built.records)
        else:
            sessions.append(session)
    return Decision(sessions=tuple(sessions), records=tuple(records))


def start_waiting(session: SessionState, phase: Phase, now: int, **changes: object) -> SessionState:
    """The session in a waiting phase, with neither claim nor ticket."""
    waiting = replace(
        session, phase=phase, since=now, claim_id=None, worker_id=None, ticket_released_at=None, releases=0
    )
    return replace(waiting, **changes)


def next_attempt(session: SessionState, now: int) -> SessionState:
    """The session queued for a new attempt, which keeps nothing of the last one but what it cost."""
    return SessionState(
        session.session_id,
        session.task_id,
        session.sample_index,
        Phase.QUEUED,
        now,
        attempt=session.attempt + 1,
        spent=session.spent,
        past_claims=[*session.past_claims, *([session.run_claim_id] if session.run_claim_id else [])],
        revoked_claims=session.revoked_claims,
        accounting=Accounting(attempts_lost=session.accounting.attempts_lost + 1),
    )


def close_run(session: SessionState, now: int, status: Status, error: SessionError | None, *, reason: str) -> Decision:
    """End a run whose harness may live: close its key now; `Build` follows when the harness is dead or after 2 s (protocol 17)."""
    return Decision(sessions=(_closing(session, now, status, error),), commands=stop_claim(session, reason))


def stop_claim(session: SessionState, reason: str) -> tuple[Command, ...]:
    """Revoke the granted claim and close a run's key."""
    assert session.claim_id is not None, "only a claim can be stopped"
    revoke = Revoke(session.session_id, session.claim_id, reason)
    if session.phase is not Phase.RUNNING:
        return (revoke,)
    return (revoke, CloseKey(session.session_id, session.claim_id))


def build(task: TaskState, session: SessionState, now: int) -> Decision:
    """Everything is known: write `Build`. If no run was granted in this attempt, an empty `Open` opens the session for the builder.

    A runtime that the row still names has no user any more and is discarded.
    """
    assert session.status is not None, "a session ends with a status"
    assert task.plan is not None, "a session's task is known"
    claim_id = session.run_claim_id or ""
    record = Build(
        session.session_id,
        session.task_id,
        session.sample_index,
        task.num_samples,
        session.attempt,
        claim_id,
        session.status,
        builder=task.plan.builder,
        builder_config=task.plan.builder_config,
        harness=task.plan.harness,
        reward=session.reward,
        call_rewards=session.call_rewards,
        error=session.error,
        accounting=session.accounting,
        artifacts=session.artifacts,
        metadata=task.plan.metadata,
        output=task.plan.output,
        mode=task.plan.mode,
        reward_reason=session.reward_reason,
        run=task.plan.run,
        label=session.label,
        reward_needs_call=session.reward_needs_call,
    )
    opened = () if session.run_claim_id else (Open(session.session_id, session.attempt, claim_id),)
    building = replace(session, phase=Phase.BUILDING, since=now, claim_id=None, worker_id=None, ticket_released_at=None)
    return Decision(sessions=(building,), records=(*opened, record), commands=discard_runtime(session))


def with_claim_revoked(session: SessionState) -> SessionState:
    """Remember the granted claim as revoked. A run's claim isn't added: its Revoke is repeated together with its key's end."""
    if session.claim_id is None or session.claim_id == session.run_claim_id:
        return session
    return replace(session, revoked_claims=[*session.revoked_claims, session.claim_id])


def discard_runtime(session: SessionState) -> tuple[Command, ...]:
    """Discard the session's runtime, if any. Must be sent after the Revoke of a claim that may work in the runtime."""
    if session.runtime is None:
        return ()
    return (Discard(session.session_id, session.init_claim_id or "", session.runtime),)


def repeated_commands(session: SessionState) -> list[Command]:
    """The ends of claims, keys and a runtime that the row calls for. Tickets and Grants repeat otherwise: they go stale, or are asked
    for."""
    if session.phase is Phase.ENDED:
        return []
    commands: list[Command] = [Revoke(session.session_id, claim_id, "ended") for claim_id in session.revoked_claims]
    run_claims = list(session.past_claims)
    if session.run_claim_id is not None and session.phase is not Phase.RUNNING:
        run_claims.append(session.run_claim_id)
    for claim_id in run_claims:
        commands += (Revoke(session.session_id, claim_id, "ended"), CloseKey(session.session_id, claim_id))
    if session.phase is Phase.BUILDING:
        commands += discard_runtime(session)
    return commands


def attempt_failed(table: Table, session: SessionState, error: SessionError, now: int) -> Decision:
    """End this attempt: start the next one if it may help and one remains, otherwise the session is FAILED with what was captured.

    The caller stops the attempt's claim if it may live on.
    """
    task = table.task_of(session)
    assert task.plan is not None, "a session's task is known"
    spent = replace(session, spent=session.spent + 1)
    if error.retryable and spent.spent < task.plan.max_attempts:
        return Decision(sessions=(next_attempt(spent, now),), commands=discard_runtime(session))
    if session.phase is Phase.RUNNING and error.code in ("lost", "deadline"):
        return Decision(sessions=(_closing(spent, now, Status.FAILED, error),))
    return build(task, replace(spent, status=Status.FAILED, error=error), now)


def evaluation_lost(table: Table, session: SessionState, error: SessionError, now: int) -> Decision:
    lost = replace(session, evaluations_lost=session.evaluations_lost + 1)
    if lost.evaluations_lost < EVALUATIONS:
        return Decision(sessions=(start_waiting(lost, Phase.RAN, now),))
    return build(table.task_of(session), evaluation_failed(lost, replace(error, retryable=False)), now)


def evaluation_failed(session: SessionState, error: SessionError | None) -> SessionState:
    """A completed run whose evaluation failed is FAILED; a worse status stays."""
    if error is None:
        return session
    return replace(
        session,
        status=Status.FAILED if session.status is Status.COMPLETED else session.status,
        error=session.error or error,
        evaluation_error=error,
        reward=None,
        reward_reason=f"{error.kind}/{error.code}: {error.message}"[:REASON_LIMIT],
        call_rewards=None,
    )


def _closing(session: SessionState, now: int, status: Status, error: SessionError | None) -> SessionState:
    """The run's duration is taken from log time, because no worker reports it."""
    accounting = replace(session.accounting, run_ms=now - session.since)
    return replace(session, phase=Phase.CLOSING, since=now, status=status, error=error, accounting=accounting)
