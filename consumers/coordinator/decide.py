"""`decide(table, input, now) → Decision`: pure, the whole life of a session.

    QUEUED ─lent,claimed─▶ INIT ─▶ READY ─lent,claimed─▶ RUNNING ─▶ RAN ─lent,claimed─▶ EVALUATING ─▶ BUILDING ─▶ ENDED
       ▲                    │        │                      │                              │            ▲
       └────────────── attempt + 1 ──┴──────────────────────┤                              └─▶ RAN ≤ 3×  │
                                                            └─▶ CLOSING (harness perhaps alive) ─────────┘

`TRANSITIONS` says which input means something in which phase, `OPENED` for sessions that no worker has a part in (their way is drawn in
`opened`); what they don't name is counted and skipped (protocol 6). A claim is always answered: with a Grant where it is the first of
its stage in log order, with a Revoke otherwise. Only a granted claim costs an attempt (protocol 9).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from consumers.coordinator import groups, opened
from consumers.coordinator.commands import (
    ClaimLost,
    DeadlinePassed,
    Decision,
    FleetPaused,
    FleetResumed,
    Input,
    PoolOffline,
    SlotAssigned,
    TaskExpired,
)
from consumers.coordinator.deadlines import is_ticket_stale
from consumers.coordinator.endings import (
    attempt_failed,
    build,
    discard,
    evaluation_failed,
    evaluation_lost,
    next_attempt,
    stop,
    taken_back,
    wait,
)
from consumers.coordinator.grants import claimed, lent
from consumers.coordinator.phases import HAND, WAITING
from consumers.coordinator.state import Table
from topics.completions import Build
from topics.control import CloseKey, Discard
from topics.events import (
    CancelRequested,
    Claimed,
    Evaluated,
    GroupEmitted,
    HandedBack,
    InitFinished,
    RunFinished,
    SessionCloseRequested,
    SessionOpenRequested,
    SessionOpenWithdrawn,
    Stopped,
    TaskSubmitted,
    TrajectoryEmitted,
)
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status

Handler = Callable[[Table, SessionState, Any, int], Decision]


def decide(table: Table, given: Input, now: int) -> Decision:
    """What follows from one input at clock `now` (ms). Doesn't touch the table."""
    whole = WHOLE.get(type(given))
    if whole is not None:
        return whole(table, given, now)
    if isinstance(given, SlotAssigned):
        session = table.next_waiting(given.stage, given.pool, given.priority, given.user)
        if session is None:
            return Decision(skipped="nobody_waits")
    else:
        session = table.session(given.session_id)  # type: ignore[union-attr,arg-type] # all but those of `WHOLE` name one
    if isinstance(given, Claimed):
        return claimed(table, session, given, now)
    if session is None:
        return Decision(skipped="unknown_session")
    if isinstance(given, DeadlinePassed) and not table.is_due(session, now):
        return Decision(skipped="early_deadline")
    transitions = TRANSITIONS if table.task_of(session).opened_at is None else OPENED
    handler = transitions.get((session.phase, type(given)))
    if handler is None:
        return Decision(skipped=f"{type(given).__name__}_in_{session.phase.value}")
    return handler(table, session, given, now)


def _paused(table: Table, given: FleetPaused, now: int) -> Decision:
    return _turned(table, True, now)


def _resumed(table: Table, given: FleetResumed, now: int) -> Decision:
    return _turned(table, False, now)


def _turned(table: Table, paused: bool, now: int) -> Decision:
    if paused == (table.pauses.began is not None):
        return Decision(skipped="already_paused" if paused else "not_paused")
    return Decision(pauses=table.pauses.turned(paused, now))


# --- what workers report -------------------------------------------------------------------------------------------------------


def _init_finished(table: Table, session: SessionState, fact: InitFinished, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return _init_unwanted(table, session, fact, now)
    timed = replace(session, accounting=replace(session.accounting, init_ms=fact.duration_ms))
    if fact.error is not None:
        return attempt_failed(table, timed, fact.error, now)
    return Decision(sessions=(wait(timed, Phase.READY, now, runtime=fact.runtime, init_claim_id=fact.claim_id),))


def _init_unwanted(table: Table, session: SessionState, fact: InitFinished, now: int) -> Decision:
    """A runtime that was made for nothing. The session's own is told of twice where its fact was sent anew (protocol 19)."""
    if fact.runtime is None or fact.claim_id == session.init_claim_id:
        return Decision(skipped="stale_claim")
    return Decision(commands=(Discard(session.session_id, fact.claim_id, fact.runtime),), skipped="stale_claim")


def _run_finished(table: Table, session: SessionState, fact: RunFinished, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    close = (CloseKey(session.session_id, fact.claim_id),)
    timed = replace(session, accounting=replace(session.accounting, run_ms=fact.duration_ms), artifacts=fact.artifacts)
    if fact.error is not None and fact.error.kind in (Kind.INFRA, Kind.INPUT):
        decision = attempt_failed(table, timed, fact.error, now)
        return Decision(sessions=decision.sessions, records=decision.records, commands=close + decision.commands)
    ran = wait(timed, Phase.RAN, now, status=fact.status, exit_code=fact.exit_code, error=fact.error)
    return Decision(sessions=(ran,), commands=close)


def _evaluated(table: Table, session: SessionState, fact: Evaluated, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    if fact.error is not None and fact.error.retryable:
        return evaluation_lost(table, session, fact.error, now)
    judged = replace(
        session,
        # With its verdict the worker has removed the runtime; one that could do neither leaves it to be discarded.
        runtime=session.runtime if fact.error else None,
        reward=fact.reward,
        call_rewards=fact.call_rewards,
        accounting=replace(session.accounting, evaluate_ms=fact.duration_ms),
        artifacts={**(session.artifacts or {}), **(fact.artifacts or {})} or None,
    )
    return build(table.task_of(session), evaluation_failed(judged, fact.error), now)


def _handed_back(table: Table, session: SessionState, fact: HandedBack, now: int) -> Decision:
    """A worker that shuts down: costs nothing. A run starts over, since its calls are one claim's."""
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    match session.phase:
        case Phase.INIT:
            return Decision(sessions=(wait(session, Phase.QUEUED, now),))
        case Phase.EVALUATING:
            return Decision(sessions=(wait(session, Phase.RAN, now),))
        case _:
            over = (CloseKey(session.session_id, fact.claim_id), *discard(session))
            return Decision(sessions=(next_attempt(session, now),), commands=over)


def _stopped(table: Table, session: SessionState, fact: Stopped, now: int) -> Decision:
    if fact.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    return build(table.task_of(session), session, now)


# --- what goes wrong -----------------------------------------------------------------------------------------------------------


def _claim_lost(table: Table, session: SessionState, given: ClaimLost, now: int) -> Decision:
    if given.claim_id != session.claim_id:
        return Decision(skipped="stale_claim")
    return _lost(table, session, "lost", "its worker is gone", now)


def _lost(table: Table, session: SessionState, code: str, what: str, now: int) -> Decision:
    """A granted claim came to nothing. The worker may live on and not know it: it is told to stop."""
    stage = HAND[session.phase]
    error = SessionError(
        stage.value, Kind.INFRA, code, f"{stage.value} claim {session.claim_id}: {what}", retryable=True
    )
    ended = evaluation_lost if session.phase is Phase.EVALUATING else attempt_failed
    again = ended(table, taken_back(session), error, now)
    return Decision(sessions=again.sessions, records=again.records, commands=(*stop(session, code), *again.commands))


def _pool_dark(table: Table, session: SessionState, given: PoolOffline, now: int) -> Decision:
    """The runtime's host may be gone for good: made anew elsewhere, at no cost.

    A run ticket that is out names this runtime, and may be found when the pool comes back: it must not count then, so that attempt ends.
    """
    same = wait(session, Phase.QUEUED, now, runtime=None, init_claim_id=None)
    again = next_attempt(session, now) if session.releases else same
    return Decision(sessions=(again,), commands=discard(session))


def _waited(table: Table, session: SessionState, given: DeadlinePassed, now: int) -> Decision:
    if is_ticket_stale(session, now):
        return Decision(sessions=(replace(session, ticket_released_at=None),))
    stage = WAITING[session.phase].stage
    error = SessionError(
        "queue", Kind.INFRA, "no_worker", f"no {stage.value} worker took this session in time", retryable=False
    )
    status = session.status or Status.FAILED
    return build(table.task_of(session), replace(session, status=status, error=session.error or error), now)


def _overran(table: Table, session: SessionState, given: DeadlinePassed, now: int) -> Decision:
    return _lost(table, session, "deadline", "it outlasted its budget, and its worker didn't end it", now)


def _closed(table: Table, session: SessionState, given: DeadlinePassed, now: int) -> Decision:
    return build(table.task_of(session), session, now)


def _build_again(table: Table, session: SessionState, given: DeadlinePassed, now: int) -> Decision:
    """Without an `Open`: the trajectory may be out, its fact still unread, and an `Open` would have the builder make another."""
    again = build(table.task_of(session), session, now)
    return Decision(sessions=again.sessions, records=tuple(r for r in again.records if isinstance(r, Build)))


WHOLE: dict[type[Any], Callable[[Table, Any, int], Decision]] = {
    TaskSubmitted: groups.submitted,
    CancelRequested: groups.cancel_requested,
    GroupEmitted: groups.group_emitted,
    TaskExpired: groups.forgotten,
    SessionOpenRequested: opened.open_requested,
    SessionOpenWithdrawn: opened.withdrawn,
    SessionCloseRequested: opened.close_requested,
    FleetPaused: _paused,
    FleetResumed: _resumed,
}
"""What isn't about one session that must be there."""
TRANSITIONS: dict[tuple[Phase, type[Any]], Handler] = {
    **{(phase, InitFinished): _init_unwanted for phase in Phase},
    (Phase.QUEUED, SlotAssigned): lent,
    (Phase.QUEUED, DeadlinePassed): _waited,
    (Phase.INIT, InitFinished): _init_finished,
    (Phase.INIT, HandedBack): _handed_back,
    (Phase.INIT, ClaimLost): _claim_lost,
    (Phase.INIT, DeadlinePassed): _overran,
    (Phase.READY, SlotAssigned): lent,
    (Phase.READY, PoolOffline): _pool_dark,
    (Phase.READY, DeadlinePassed): _waited,
    (Phase.RUNNING, RunFinished): _run_finished,
    (Phase.RUNNING, HandedBack): _handed_back,
    (Phase.RUNNING, ClaimLost): _claim_lost,
    (Phase.RUNNING, DeadlinePassed): _overran,
    (Phase.RAN, SlotAssigned): lent,
    (Phase.RAN, DeadlinePassed): _waited,
    (Phase.EVALUATING, Evaluated): _evaluated,
    (Phase.EVALUATING, HandedBack): _handed_back,
    (Phase.EVALUATING, ClaimLost): _claim_lost,
    (Phase.EVALUATING, DeadlinePassed): _overran,
    (Phase.CLOSING, Stopped): _stopped,
    (Phase.CLOSING, DeadlinePassed): _closed,
    (Phase.BUILDING, TrajectoryEmitted): groups.emitted,
    (Phase.BUILDING, DeadlinePassed): _build_again,
}
"""Claims and cancels are honoured in every phase: see `claimed` and `groups`."""
OPENED: dict[tuple[Phase, type[Any]], Handler] = {
    (Phase.UNOPENED, DeadlinePassed): opened.never_opened,
    (Phase.RUNNING, DeadlinePassed): opened.expired,
    (Phase.CLOSING, DeadlinePassed): _closed,
    (Phase.BUILDING, TrajectoryEmitted): groups.emitted,
    (Phase.BUILDING, DeadlinePassed): _build_again,
}
"""The same for sessions of opened tasks; what is asked about them is answered in every phase, by `opened`."""
