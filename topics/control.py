"""`polar.control`: the coordinator's answers to claims, and closed keys. Idempotent; sent after the commit, and again while needed.

Workers read it from its end, proxies from 10 min ago (protocol 18, 30). One partition. Key: session id.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic


class Grant(msgspec.Struct, frozen=True, tag="grant", omit_defaults=True):
    """The claim counts, and its work may start. For the close of an opened session: it counts, with its reward, and `claim_id` is the
    id of the `SessionCloseRequested`."""

    session_id: str
    attempt: int
    claim_id: str
    log_partition: int | None = None
    """Run and evaluate claims: position of this attempt's `Open` in `polar.completions`, which the session key carries."""
    log_offset: int | None = None


class Revoke(msgspec.Struct, frozen=True, tag="revoke", omit_defaults=True):
    """The claim doesn't count, or no longer counts: its work stops and touches nothing shared."""

    session_id: str
    """The task id if no session was found for the claim."""
    claim_id: str
    reason: str
    """`taken`, `lost`, `cancelled`, `ended`, `deadline`, `unproven` (protocol 33); for requests about opened sessions also
    `submitted`, `samples`, `mode`, `unopened`, `unknown` (protocol 28)."""


class CloseKey(msgspec.Struct, frozen=True, tag="close_key", omit_defaults=True):
    """The claim's keys are closed: no call starts, and calls in flight end (protocol 17)."""

    session_id: str
    claim_id: str


class Drain(msgspec.Struct, frozen=True, tag="drain", omit_defaults=True):
    """The worker must take no more tickets and exit once its sessions are done."""

    worker_id: str


class Discard(msgspec.Struct, frozen=True, tag="discard", omit_defaults=True):
    """A runtime is needed no more and no claim uses it: any worker that can reach it removes it."""

    session_id: str
    claim_id: str
    """The init claim that made the runtime."""
    runtime: dict[str, str]
    """The runtime's handle."""


Control = Grant | Revoke | CloseKey | Drain | Discard
RECORDS = (Grant, Revoke, CloseKey, Drain, Discard)
CODEC: Codec[Control] = Codec(*RECORDS)
TOPIC = Topic(
    name="control",
    records=RECORDS,
    key="session id",
    writers="coordinator, control API",
    readers="workers from the end, proxies from 10 min ago",
    retention_ms=DAY_MS,
    partitions=1,
    embedded_partitions=1,
)
