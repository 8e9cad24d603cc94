"""`polar.control`: the coordinator's answers to claims, and the ends of keys. All idempotent, sent after the commit, again while due.

Read by every worker from its end, and by proxies from 10 min ago (protocol 18, 30). One partition. Key: session id.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic


class Grant(msgspec.Struct, frozen=True, tag="grant", omit_defaults=True):
    """The claim counts: start. Of a close of an opened session: it counts, with its reward; `claim_id` is the fact's id then."""

    session_id: str
    attempt: int
    claim_id: str
    log_partition: int | None = None
    """Run claims: where this attempt's `Open` lies in `polar.completions`; the key carries it."""
    log_offset: int | None = None


class Revoke(msgspec.Struct, frozen=True, tag="revoke", omit_defaults=True):
    """The claim doesn't count, or no longer: stop, and touch nothing shared."""

    session_id: str
    """The task's id where no session was found for the claim."""
    claim_id: str
    reason: str
    """`taken`, `lost`, `cancelled`, `ended`, `deadline`; of what was asked about opened sessions also `submitted`, `samples`, `mode`,
    `unopened`, `unknown` (protocol 28)."""


class CloseKey(msgspec.Struct, frozen=True, tag="close_key", omit_defaults=True):
    """The keys of this claim are closed: no call starts, calls in flight end (protocol 17)."""

    session_id: str
    claim_id: str


class Drain(msgspec.Struct, frozen=True, tag="drain", omit_defaults=True):
    """A worker is to take no more tickets and leave when its sessions are done."""

    worker_id: str


class Discard(msgspec.Struct, frozen=True, tag="discard", omit_defaults=True):
    """A runtime has no use any more, and nobody has it in hand: whichever worker can reach it removes it."""

    session_id: str
    claim_id: str
    """The init claim that made it."""
    runtime: dict[str, str]
    """Its handle."""


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
