"""Tickets and claims: a lent slot becomes a ticket, the first claim of its stage is granted. Pure, as `decide` is."""

from __future__ import annotations

from msgspec.structs import replace

from consumers.coordinator.commands import Decision, ReleaseTicket, SlotAssigned
from consumers.coordinator.phases import HAND, WAITING
from consumers.coordinator.state import Table
from topics.completions import Open
from topics.control import Grant, Revoke
from topics.events import Claimed
from topics.types.session import Phase, SessionState, Stage


def lent(table: Table, session: SessionState, given: SlotAssigned, now: int) -> Decision:
    """The slot's ticket goes out."""
    return Decision(
        sessions=(replace(session, ticket_released_at=now, releases=session.releases + 1),),
        commands=(ReleaseTicket(session.session_id, given.stage, given.worker_id, given.queue_partition),),
    )


def claimed(table: Table, session: SessionState | None, fact: Claimed, now: int) -> Decision:
    """A Grant for the first claim of the stage that the session waits for, whenever it is asked again; a Revoke for any other."""
    if session is None:
        return Decision(commands=(Revoke(fact.session_id, fact.claim_id, "ended"),))
    if session.claim_id == fact.claim_id and session.phase in HAND:
        return Decision(commands=(grant(table, session),))
    waits_for = WAITING.get(session.phase)
    if waits_for is None or waits_for.stage != fact.stage or session.attempt != fact.attempt or not session.releases:
        over = session.phase in (Phase.BUILDING, Phase.ENDED)
        return Decision(commands=(Revoke(fact.session_id, fact.claim_id, "ended" if over else "taken"),))
    accounting = replace(session.accounting, **{f"{fact.stage.value}_queued_ms": now - session.since})
    granted = replace(
        session,
        phase=waits_for.in_hand,
        since=now,
        claim_id=fact.claim_id,
        worker_id=fact.worker_id,
        ticket_released_at=None,
        accounting=accounting,
    )
    if fact.stage is not Stage.RUN:
        return Decision(sessions=(granted,), commands=(grant(table, granted),))
    # The Grant tells the offset of this Open: the loop fills it in once the broker has given it.
    opened = replace(granted, run_claim_id=fact.claim_id, paused_ms=table.pauses.total_ms(now))
    return Decision(
        sessions=(opened,),
        records=(Open(session.session_id, session.attempt, fact.claim_id),),
        commands=(grant(table, opened),),
    )


def grant(table: Table, session: SessionState) -> Grant:
    """The answer to a claim that counts."""
    assert session.claim_id is not None, "a grant answers a claim"
    running = session.phase is Phase.RUNNING
    return Grant(
        session.session_id,
        session.attempt,
        session.claim_id,
        log_partition=table.partition if running else None,
        log_offset=session.log_offset if running else None,
    )
