"""`polar.stage.<stage>.<pool>`: tickets, one queue for each stage and pool.

The coordinator writes tickets after its commit, and again while unclaimed; the stage's workers read them, one consumer group per pool.
Key: session id. A ticket's partition only steers it to a worker with a free slot. Order is not kept.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic
from topics.types.errors import SessionError
from topics.types.session import Stage, Status


class Ticket(msgspec.Struct, frozen=True, tag="ticket", omit_defaults=True):
    """Work for one stage of one attempt; its first claim counts, however often the ticket is released."""

    session_id: str
    sample_index: int
    attempt: int
    stage: Stage
    budget_s: float
    body: bytes | None = None
    """The TaskRequest as canonical JSON."""
    body_ref: str | None = None
    """Blob reference of a large TaskRequest."""
    runtime: dict[str, str] | None = None
    """Handle of the runtime that init made; None for init."""
    run_claim_id: str | None = None
    """Evaluate: the claim whose run is evaluated."""
    status: Status | None = None
    """Evaluate: how the run ended."""
    exit_code: int | None = None
    error: SessionError | None = None
    artifacts: dict[str, str] | None = None
    """Evaluate: what the run left in the blob store, by name."""
    ticket_id: str | None = None
    """Part of the ids of this ticket's claims; None if the coordinator is older than claim keys."""
    claim_key: bytes | None = None
    """Signs the facts about this ticket's claims (`topics/environment/claim_keys.py`). Set together with `ticket_id`."""
    lost_artifacts: list[str] | None = None
    """Evaluate: `lost_artifacts` of the run's fact; None: none that a worker reported."""


CODEC: Codec[Ticket] = Codec(Ticket)
PREFIX = "stage."
"""Prefix of queue names."""


def topic(stage: Stage, pool: str) -> Topic:
    """The queue of a stage and pool; at most 64 worker processes share one."""
    return Topic(
        name=f"{PREFIX}{stage.value}.{pool}",
        records=(Ticket,),
        key="session id (the partition steers to a worker with a free slot)",
        writers="coordinator",
        readers=f"{stage.value} workers of pool {pool}",
        retention_ms=2 * DAY_MS,
        partitions=64,
        embedded_partitions=8,
    )
