"""Decides whether a fact about a claim comes from the worker that holds the claim's ticket (protocol 33)."""

from __future__ import annotations

from topics.environment.claim_keys import ClaimKeys, ticket_of
from topics.events import Claimed, ClaimFact, Evaluated, InitFinished, RunFinished
from topics.log import kafka
from topics.types.session import SessionState, Stage

STAGES: dict[type[ClaimFact], Stage] = {
    InitFinished: Stage.INIT,
    RunFinished: Stage.RUN,
    Evaluated: Stage.EVALUATE,
}
"""Stages whose results these facts report; other facts are about a claim of any stage."""


def is_proven(fact: ClaimFact, record: kafka.Record, session: SessionState | None, keys: ClaimKeys) -> bool:
    """Whether the fact may be decided. `session`: its row, None if there is none.

    A claim whose id names no ticket was granted by a coordinator without claim keys. Its facts have no MAC and count as long as the row
    holds the claim. No such claim is granted any more, so nobody can make one up.
    """
    named = ticket_of(fact.claim_id)
    if named is None:
        return session is not None and session.claim_id == fact.claim_id
    stage, ticket = named
    reported = fact.stage if isinstance(fact, Claimed) else STAGES.get(type(fact), stage)
    return reported is stage and keys.verifies(
        record.headers,
        record.value or b"",
        session_id=fact.session_id,
        attempt=fact.attempt,
        stage=stage,
        ticket=ticket,
    )
