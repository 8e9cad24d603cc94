"""Tickets and claims: an assigned slot becomes a ticket, and the first claim of a stage is granted. Pure, as `decide` is."""

from __future__ import annotations

from msgspec.structs import replace

from consumers.coordinator.commands import Decision, ReleaseTicket, SlotAssigned
from consumers.coordinator.state import Table
from topics.completions import Open
from topics.control import Grant, Revoke
from topics.environment.claim_keys import is_of_wait, ticket_of
from topics.events import Claimed
from topics.types.session import CLAIMED_PHASES, CLAIMED_STAGES, WAITING_STAGES, Phase, SessionState, Stage


def release_ticket(table: Table, session: SessionState, slot: SlotAssigned, now: int) -> Decision:
    return Decision(
        sessions=(replace(session, ticket_released_at=now, releases=session.releases + 1),),
        commands=(ReleaseTicket(session.session_id, slot.stage, slot.worker_id, slot.queue_partition),),
    )


def answer_claim(table: Table, session: SessionState | None, fact: Claimed, now: int) -> Decision:
    """A Grant for the first claim of the stage that the session waits for, each time it is sent; a Revoke for any other claim."""
    if session is None:
        return Decision(commands=(Revoke(fact.session_id, fact.claim_id, "ended"),))
    if session.claim_id == fact.claim_id and session.phase in CLAIMED_STAGES:
        return Decision(commands=(grant(table, session),))
    stage = WAITING_STAGES.get(session.phase)
    if (
        stage is None
        or stage != fact.stage
        or session.attempt != fact.attempt
        or not session.releases
        or _is_of_earlier_wait(session, fact)
    ):
        reason = "ended" if session.phase in (Phase.BUILDING, Phase.ENDED) else "taken"
        return Decision(commands=(Revoke(fact.session_id, fact.claim_id, reason),))
    granted = replace(
        session,
        phase=CLAIMED_PHASES[stage],
        since=now,
        claim_id=fact.claim_id,
        worker_id=fact.worker_id,
        ticket_released_at=None,
        accounting=replace(session.accounting, **{f"{fact.stage.value}_queued_ms": now - session.since}),
    )
    return (
        start_run(table, granted, now)
        if fact.stage is Stage.RUN
        else Decision((), (granted,), commands=(grant(table, granted),))
    )


def _is_of_earlier_wait(session: SessionState, fact: Claimed) -> bool:
    """Whether the claim's ticket was for a wait that is over: its claim ended, and must not be granted again if it is sent again."""
    named = ticket_of(fact.claim_id)
    return named is not None and not is_of_wait(named[1], session.since)


def start_run(table: Table, granted: SessionState, now: int) -> Decision:
    """Open the session's log for the granted run claim. The partition adds the offset of this Open to the Grant when it is known."""
    assert granted.claim_id is not None, "a run is granted to a claim"
    running = replace(granted, run_claim_id=granted.claim_id, paused_ms=table.pauses.total_ms(now))
    opened = Open(running.session_id, running.attempt, granted.claim_id)
    return Decision(sessions=(running,), records=(opened,), commands=(grant(table, running),))


def grant(table: Table, session: SessionState) -> Grant:
    """The answer to the session's granted claim."""
    assert session.claim_id is not None, "a grant answers a claim"
    calls_models = session.phase in (Phase.RUNNING, Phase.EVALUATING)
    return Grant(
        session.session_id,
        session.attempt,
        session.claim_id,
        log_partition=table.partition if calls_models else None,
        log_offset=session.log_offset if calls_models else None,
    )
