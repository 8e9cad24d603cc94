"""How a session begins, starts over and comes to an end: the steps that several transitions share. Pure, as they are."""

from __future__ import annotations

from msgspec.structs import replace

from consumers.coordinator.commands import Command, Decision
from consumers.coordinator.state import Table
from topics.completions import Build, CloseGroup, Open
from topics.control import CloseKey, Discard, Revoke
from topics.types.errors import SessionError
from topics.types.session import Accounting, Phase, SessionState, Status, TaskState, session_id_of

EVALUATIONS = 3
"""Tries of an evaluation before its reward is null (protocol 15)."""


def first_rows(table: Table, task: TaskState, phase: Phase, now: int) -> Decision:
    """The sessions of a task that has just become known, in their first phase; those cancelled before that are built at once.

    Those that are there are left as they are: a coordinator died while it wrote them (`batch`).
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


def wait(session: SessionState, phase: Phase, now: int, **changes: object) -> SessionState:
    """Into a waiting phase: no claim, no ticket out."""
    return replace(
        session, phase=phase, since=now, claim_id=None, worker_id=None, ticket_released_at=None, releases=0, **changes
    )


def next_attempt(session: SessionState, now: int) -> SessionState:
    """Each attempt stands alone: nothing of the last one is kept but what it cost."""
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


def close(session: SessionState, now: int, status: Status, error: SessionError | None, *, reason: str) -> Decision:
    """End a run whose harness may live: its key first, `Build` when it is dead or 2 s later (protocol 17)."""
    return Decision(sessions=(_closing(session, now, status, error),), commands=stop(session, reason))


def stop(session: SessionState, reason: str) -> tuple[Command, ...]:
    """The end of the claim in hand, and of a run's key."""
    assert session.claim_id is not None, "only a claim can be stopped"
    over = Revoke(session.session_id, session.claim_id, reason)
    if session.phase is not Phase.RUNNING:
        return (over,)
    return (over, CloseKey(session.session_id, session.claim_id))


def build(task: TaskState, session: SessionState, now: int) -> Decision:
    """All is known: `Build`, once. Where no run was granted in this attempt an empty `Open` opens the session for the builder.

    A runtime that the row still has is nobody's any more: it is discarded.
    """
    assert session.status is not None, "a session ends with a status"
    assert task.plan is not None, "a session's task is known"
    claim_id = session.run_claim_id or ""
    asked = Build(
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
    )
    opened = () if session.run_claim_id else (Open(session.session_id, session.attempt, claim_id),)
    building = replace(session, phase=Phase.BUILDING, since=now, claim_id=None, worker_id=None, ticket_released_at=None)
    return Decision(sessions=(building,), records=(*opened, asked), commands=discard(session))


def taken_back(session: SessionState) -> SessionState:
    """Remembers the claim in hand as revoked. A run's needs no more: its end is said again with its key's."""
    if session.claim_id is None or session.claim_id == session.run_claim_id:
        return session
    return replace(session, revoked_claims=[*session.revoked_claims, session.claim_id])


def discard(session: SessionState) -> tuple[Command, ...]:
    """The end of the runtime that this row has, if any; after the Revoke of a claim that may work in it."""
    if session.runtime is None:
        return ()
    return (Discard(session.session_id, session.init_claim_id or "", session.runtime),)


def said_again(session: SessionState) -> list[Command]:
    """The ends of claims, keys and a runtime that are due by this row. Tickets go stale, and claims are asked again."""
    if session.phase is Phase.ENDED:
        return []
    again: list[Command] = [Revoke(session.session_id, claim_id, "ended") for claim_id in session.revoked_claims]
    runs = list(session.past_claims)
    if session.run_claim_id is not None and session.phase is not Phase.RUNNING:
        runs.append(session.run_claim_id)
    for claim_id in runs:
        again += (Revoke(session.session_id, claim_id, "ended"), CloseKey(session.session_id, claim_id))
    if session.phase is Phase.BUILDING:
        again += discard(session)
    return again


def attempt_failed(table: Table, session: SessionState, error: SessionError, now: int) -> Decision:
    """This attempt is over. Another one where that may help and one is left, else FAILED with what was captured.

    Its claim is stopped by the caller, where it may live on.
    """
    task = table.task_of(session)
    assert task.plan is not None, "a session's task is known"
    spent = replace(session, spent=session.spent + 1)
    if error.retryable and spent.spent < task.plan.max_attempts:
        return Decision(sessions=(next_attempt(spent, now),), commands=discard(session))
    if session.phase is Phase.RUNNING and error.code in ("lost", "deadline"):
        return Decision(sessions=(_closing(spent, now, Status.FAILED, error),))
    return build(task, replace(spent, status=Status.FAILED, error=error), now)


def evaluation_lost(table: Table, session: SessionState, error: SessionError, now: int) -> Decision:
    lost = replace(session, evaluations_lost=session.evaluations_lost + 1)
    if lost.evaluations_lost < EVALUATIONS:
        return Decision(sessions=(wait(lost, Phase.RAN, now),))
    return build(table.task_of(session), evaluation_failed(lost, replace(error, retryable=False)), now)


def evaluation_failed(session: SessionState, error: SessionError | None) -> SessionState:
    """A run that completed but could not be judged is no success; a worse status stays."""
    if error is None:
        return session
    status = Status.FAILED if session.status is Status.COMPLETED else session.status
    return replace(session, status=status, error=session.error or error, reward=None, call_rewards=None)


def _closing(session: SessionState, now: int, status: Status, error: SessionError | None) -> SessionState:
    """How long it ran is told by log time, since no worker tells."""
    accounting = replace(session.accounting, run_ms=now - session.since)
    return replace(session, phase=Phase.CLOSING, since=now, status=status, error=error, accounting=accounting)
