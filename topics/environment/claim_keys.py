"""Claim keys: a fact about a claim counts only with a MAC that the claim's ticket makes possible (protocol 33).

The coordinator puts an id and a key on each ticket. The worker makes the ticket's id a part of its claim's id, and signs each fact about
the claim: the header `claim-mac` holds the HMAC-SHA256 of the record's value. The MAC covers the bytes that were sent, not fields, so a
coordinator can verify facts of a newer worker, which have fields that it doesn't know.

A key is derived from a secret of the keys file and from what it is for (session, attempt, stage, ticket). So a coordinator keeps no keys,
and any other one that has the same keys file verifies what this one issued. Messages to derive from begin with `claim`. What is signed
for a session key begins with `eyJ`, so no session key reveals a claim key.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from topics.environment.keys import Keyring
from topics.types.session import Stage

HEADER = "claim-mac"
"""Record header with the MAC: 32 bytes."""

_ALGORITHM = "sha256"
_STAGES = {stage.value[0]: stage for stage in Stage}


def new_claim_id(stage: Stage, ticket_id: str | None) -> str:
    """A new claim's id, which names its stage and its ticket. `ticket_id`: None for a ticket of a coordinator without claim keys."""
    named = (stage.value[0], *([ticket_id] if ticket_id else []), secrets.token_hex(8))
    return "-".join(named)


def ticket_of(claim_id: str) -> tuple[Stage, str] | None:
    """Stage and ticket id that a claim's id names; None if it names no ticket."""
    parts = claim_id.split("-")
    if len(parts) != 3 or parts[0] not in _STAGES:
        return None
    return _STAGES[parts[0]], parts[1]


def ticket_id(since: int, releases: int) -> str:
    """The id of a session's ticket: when the session began to wait for the stage (ms), and the number of tickets since then."""
    return f"{since:x}.{releases:x}"


def is_of_wait(ticket: str, since: int) -> bool:
    """Whether a ticket was released in the wait that began at `since`."""
    return ticket.partition(".")[0] == f"{since:x}"


def mac(claim_key: bytes, value: bytes) -> bytes:
    """The MAC of a record's value."""
    return hmac.digest(claim_key, value, _ALGORITHM)


def headers(claim_key: bytes | None, value: bytes) -> list[tuple[str, bytes]]:
    """Headers of a fact with this value; none without a key."""
    return [] if claim_key is None else [(HEADER, mac(claim_key, value))]


class ClaimKeys:
    """Derives claim keys from a keys file, and verifies MACs. The file may change while the process runs, as in `Keyring`."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError or ValueError, both with the path."""
        self._keyring = Keyring(path)

    def key(self, session_id: str, attempt: int, stage: Stage, ticket: str) -> bytes:
        """The key for a ticket, from the signing secret."""
        return derived(self._keyring.secrets()[-1], session_id, attempt, stage, ticket)

    def verifies(
        self,
        record_headers: Iterable[tuple[str, bytes | None]],
        value: bytes,
        *,
        session_id: str,
        attempt: int,
        stage: Stage,
        ticket: str,
    ) -> bool:
        """Whether the headers hold the MAC of `value` that only a holder of this ticket's key can make."""
        for name, found in record_headers:
            if name == HEADER and found is not None:
                if self._matches(value, found, session_id, attempt, stage, ticket):
                    return True
                # The key may be derived from a secret that is newer than our last look.
                return self._keyring.refresh(at_once=True) and self._matches(
                    value, found, session_id, attempt, stage, ticket
                )
        return False

    def _matches(self, value: bytes, found: bytes, session_id: str, attempt: int, stage: Stage, ticket: str) -> bool:
        for secret in reversed(self._keyring.secrets()):
            claim_key = derived(secret, session_id, attempt, stage, ticket)
            if hmac.compare_digest(mac(claim_key, value), found):
                return True
        return False


def derived(secret: bytes, session_id: str, attempt: int, stage: Stage, ticket: str) -> bytes:
    """The key of a ticket's claims. No two subjects are the same text: a length separates what a stranger may choose from the rest."""
    subject = f"claim|{len(session_id)}|{session_id}|{attempt}|{stage.value}|{ticket}"
    return hmac.digest(secret, subject.encode(), _ALGORITHM)
