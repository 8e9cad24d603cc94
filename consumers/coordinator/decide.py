"""`decide(table, event, now) → Decision` is the whole life of a session, as a pure function.

    QUEUED ─slot,claim─▶ INIT ─▶ READY ─slot,claim─▶ RUNNING ─▶ RAN ─slot,claim─▶ EVALUATING ─▶ BUILDING ─▶ ENDED
       ▲                   │        │                   │                             │            ▲
       └───────────── attempt + 1 ──┴───────────────────┤                             └─▶ RAN ≤ 3× │
                                                        └─▶ CLOSING (harness may be alive) ────────┘

`TRANSITIONS` lists the inputs that each phase allows; `OPENED` does so for opened sessions, in which no worker takes part (drawn in
`opened`). Other inputs are counted and skipped (protocol 6). Every claim is answered: with a Grant if it is the first of its stage in log
order, otherwise with a Revoke. Only a granted claim costs an attempt (protocol 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from consumers.coordinator import commands, endings, groups, opened
from consumers.coordinator.commands import Decision, Input
from consumers.coordinator.deadlines import is_ticket_stale
from consumers.coordinator.grants import answer_claim, release_ticket
from consumers.coordinator.state import Table
from topics import events
from topics.completions import Build
from topics.control import CloseKey, Discard
from topics.types.errors import Kind, SessionError
from topics.types.session import CLAIMED_STAGES, WAITING_STAGES, Phase, SessionState, Status

Transition = Callable[[Table, SessionState, Any, int], Decision]


def decide(table: Table, event: Input, now: int) -> Decision:
    """The decision on one input at clock `now` (ms). Doesn't change the table."""
    handle = HANDLERS.get(type(event))
    if handle is not None:
        return handle(table, event, now)
    if isinstance(event, commands.SlotAssigned):
        session = table.next_waiting(event.stage, event.pool, event.priority, event.user)
        if session is None:
            return Decision(skipped="nobody_waits")
    else:
        session = table.known_session(event.session_id)  # type: ignore[union-attr,arg-type] # inputs outside HANDLERS name a session
    if isinstance(event, events.Claimed):
        return answer_claim(table, session, event, now)
    if session is None:
        return Decision(skipped="unknown_session")
    if isinstance(event, commands.DeadlinePassed) and not table.is_due(session, now):
        return Decision(skipped="early_deadline")
    transitions = TRANSITIONS if table.task_of(session).opened_at is None else OPENED
    transition = transitions.get((session.phase, type(event)))
    if transition is None:
        return Decision(skipped=f"{type(event).__name__}_in_{session.phase.value}")
    return transition(table, session, event, now)


def _fleet_changed(table: Table, event: commands.FleetPaused | commands.FleetResumed, now: int) -> Decision:
    paused = isinstance(event, commands.FleetPaused)
    if paused == (table.pauses.began is not None):
        return Decision(skipped="already_paused" if paused else "not_paused")
    return Decision(pauses=table.pauses.changed(paused, now))


# --- reports of workers


def _init_finished(table: Table, session: SessionState, fact: events.InitFinished, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return _init_superseded(table, session, fact, now)
    timed = replace(session, accounting=replace(session.accounting, init_ms=fact.duration_ms))
    if fact.error is not None:
        return endings.attempt_failed(table, timed, fact.error, now)
    made = replace(timed, backend=(fact.runtime or {}).get("backend"), unenforced=fact.unenforced)
    return Decision(
        sessions=(endings.start_waiting(made, Phase.READY, now, runtime=fact.runtime, init_claim_id=fact.claim_id),)
    )


def _init_superseded(table: Table, session: SessionState, fact: events.InitFinished, now: int) -> Decision:
    """Discard a runtime that the session doesn't use. The session's own runtime is reported twice if its fact was sent again (protocol
    19)."""
    if fact.runtime is None or fact.claim_id == session.init_claim_id:
        return Decision(skipped="stale_claim")
    return Decision(commands=(Discard(session.session_id, fact.claim_id, fact.runtime),), skipped="stale_claim")


def _run_finished(table: Table, session: SessionState, fact: events.RunFinished, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    close = (CloseKey(session.session_id, fact.claim_id),)
    timed = replace(
        session,
        accounting=replace(session.accounting, run_ms=fact.duration_ms),
        artifacts=fact.artifacts,
        lost_artifacts=fact.lost_artifacts,
        run_warning=fact.warning,
    )
    if fact.error is not None and fact.error.kind in (Kind.INFRA, Kind.INPUT):
        decision = endings.attempt_failed(table, timed, fact.error, now)
        return Decision(sessions=decision.sessions, records=decision.records, commands=close + decision.commands)
    ran = endings.start_waiting(timed, Phase.RAN, now, status=fact.status, exit_code=fact.exit_code, error=fact.error)
    return Decision(sessions=(ran,), commands=close)


def _evaluated(table: Table, session: SessionState, fact: events.Evaluated, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    if fact.error is not None and fact.error.retryable:
        return endings.evaluation_lost(table, session, fact.error, now)
    evaluated = replace(
        session,
        reward=fact.reward,
        reward_reason=fact.reason,
        call_rewards=fact.call_rewards,
        accounting=replace(session.accounting, evaluate_ms=fact.duration_ms),
        artifacts={**(session.artifacts or {}), **(fact.artifacts or {})} or None,
    )
    return endings.build(table.task_of(session), endings.evaluation_failed(evaluated, fact.error), now)


def _handed_back(table: Table, session: SessionState, fact: events.HandedBack, now: int) -> Decision:
    """A worker shuts down, which costs no attempt. A run starts over, because all its calls must be of one claim."""
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    match session.phase:
        case Phase.INIT:
            return Decision(sessions=(endings.start_waiting(session, Phase.QUEUED, now),))
        case Phase.EVALUATING:
            return Decision(sessions=(endings.start_waiting(session, Phase.RAN, now),))
        case _:
            ends = (CloseKey(session.session_id, fact.claim_id), *endings.discard_runtime(session))
            return Decision(sessions=(endings.next_attempt(session, now),), commands=ends)


def _stopped(table: Table, session: SessionState, fact: events.Stopped, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    return endings.build(table.task_of(session), session, now)


# --- failures


def _claim_lost(table: Table, session: SessionState, event: commands.ClaimLost, now: int) -> Decision:
    if event.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    return _claim_failed(table, session, "lost", "its worker is gone", now)


def _claim_failed(table: Table, session: SessionState, code: str, reason: str, now: int) -> Decision:
    """A granted claim failed. Its worker may live on without knowing it and is sent a Revoke."""
    stage = CLAIMED_STAGES[session.phase]
    error = SessionError(
        stage.value, Kind.INFRA, code, f"{stage.value} claim {session.claim_id}: {reason}", retryable=True
    )
    end = endings.evaluation_lost if session.phase is Phase.EVALUATING else endings.attempt_failed
    ended = end(table, endings.with_claim_revoked(session), error, now)
    return Decision(
        sessions=ended.sessions, records=ended.records, commands=(*endings.stop_claim(session, code), *ended.commands)
    )


def _pool_offline(table: Table, session: SessionState, event: commands.PoolOffline, now: int) -> Decision:
    """The runtime's host may be gone for good: make a new runtime elsewhere, at no cost.

    A released run ticket names the old runtime and may be claimed when the pool returns. It must not count then, so its attempt ends.
    """
    queued = endings.start_waiting(
        session, Phase.QUEUED, now, runtime=None, init_claim_id=None, backend=None, unenforced=None
    )
    return Decision(
        sessions=(endings.next_attempt(session, now) if session.releases else queued,),
        commands=endings.discard_runtime(session),
    )


def _waiting_expired(table: Table, session: SessionState, event: commands.DeadlinePassed, now: int) -> Decision:
    if is_ticket_stale(session, now):
        return Decision(sessions=(replace(session, ticket_released_at=None),))
    stage = WAITING_STAGES[session.phase]
    error = SessionError(
        "queue", Kind.INFRA, "no_worker", f"no {stage.value} worker claimed this session in time", retryable=False
    )
    status = session.status or Status.FAILED
    return endings.build(table.task_of(session), replace(session, status=status, error=session.error or error), now)


def _budget_exceeded(table: Table, session: SessionState, event: commands.DeadlinePassed, now: int) -> Decision:
    return _claim_failed(table, session, "deadline", "it exceeded its budget, and its worker didn't end it", now)


def _closing_over(table: Table, session: SessionState, event: commands.DeadlinePassed, now: int) -> Decision:
    return endings.build(table.task_of(session), session, now)


def _build_again(table: Table, session: SessionState, event: commands.DeadlinePassed, now: int) -> Decision:
    """Without an `Open`, because the trajectory may be written and its fact still unread: an `Open` would make the builder build
    another."""
    again = endings.build(table.task_of(session), session, now)
    return Decision(sessions=again.sessions, records=tuple(r for r in again.records if isinstance(r, Build)))


HANDLERS: dict[type[Any], Callable[[Table, Any, int], Decision]] = {
    events.TaskSubmitted: groups.submitted,
    events.CancelRequested: groups.cancel_requested,
    events.GroupEmitted: groups.group_emitted,
    commands.TaskExpired: groups.expired,
    events.SessionOpenRequested: opened.open_requested,
    events.SessionOpenWithdrawn: opened.withdrawn,
    events.SessionCloseRequested: opened.close_requested,
    commands.FleetPaused: _fleet_changed,
    commands.FleetResumed: _fleet_changed,
}
"""Inputs that aren't about one existing session."""
TRANSITIONS: dict[tuple[Phase, type[Any]], Transition] = {
    **{(phase, events.InitFinished): _init_superseded for phase in Phase},
    (Phase.QUEUED, commands.SlotAssigned): release_ticket,
    (Phase.QUEUED, commands.DeadlinePassed): _waiting_expired,
    (Phase.INIT, events.InitFinished): _init_finished,
    (Phase.INIT, events.HandedBack): _handed_back,
    (Phase.INIT, commands.ClaimLost): _claim_lost,
    (Phase.INIT, commands.DeadlinePassed): _budget_exceeded,
    (Phase.READY, commands.SlotAssigned): release_ticket,
    (Phase.READY, commands.PoolOffline): _pool_offline,
    (Phase.READY, commands.DeadlinePassed): _waiting_expired,
    (Phase.RUNNING, events.RunFinished): _run_finished,
    (Phase.RUNNING, events.HandedBack): _handed_back,
    (Phase.RUNNING, commands.ClaimLost): _claim_lost,
    (Phase.RUNNING, commands.DeadlinePassed): _budget_exceeded,
    (Phase.RAN, commands.SlotAssigned): release_ticket,
    (Phase.RAN, commands.DeadlinePassed): _waiting_expired,
    (Phase.EVALUATING, events.Evaluated): _evaluated,
    (Phase.EVALUATING, events.HandedBack): _handed_back,
    (Phase.EVALUATING, commands.ClaimLost): _claim_lost,
    (Phase.EVALUATING, commands.DeadlinePassed): _budget_exceeded,
    (Phase.CLOSING, events.Stopped): _stopped,
    (Phase.CLOSING, commands.DeadlinePassed): _closing_over,
    (Phase.BUILDING, events.TrajectoryEmitted): groups.emitted,
    (Phase.BUILDING, commands.DeadlinePassed): _build_again,
}
"""Claims and cancels are honoured in every phase: see `answer_claim` and `groups`."""
OPENED: dict[tuple[Phase, type[Any]], Transition] = {
    (Phase.UNOPENED, commands.DeadlinePassed): opened.never_opened,
    (Phase.RUNNING, commands.DeadlinePassed): opened.expired,
    (Phase.CLOSING, commands.DeadlinePassed): _closing_over,
    (Phase.BUILDING, events.TrajectoryEmitted): groups.emitted,
    (Phase.BUILDING, commands.DeadlinePassed): _build_again,
}
"""Transitions of opened sessions; requests about them are answered in every phase, by `opened`."""
