"""`polar.stage.<stage>.<pool>`: tickets, a queue a stage and pool.

Written by the coordinator after its commit, again while unclaimed; read by that stage's workers in one consumer group a pool. Key: session
id. The partition steers a ticket to a worker with a free slot; it says nothing else. Order is not kept.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic
from topics.types.errors import SessionError
from topics.types.session import Stage, Status


class Ticket(msgspec.Struct, frozen=True, tag="ticket", omit_defaults=True):
    """Work for one stage of one attempt; the first claim of it counts, however often it is released."""

    session_id: str
    sample_index: int
    attempt: int
    stage: Stage
    budget_s: float
    body: bytes | None = None
    """The TaskRequest as canonical JSON."""
    body_ref: str | None = None
    """Its blob reference, where it is large."""
    runtime: dict[str, str] | None = None
    """What init made; None for init."""
    run_claim_id: str | None = None
    """Evaluate: the claim whose run is judged."""
    status: Status | None = None
    """Evaluate: how the run ended."""
    exit_code: int | None = None
    error: SessionError | None = None


CODEC: Codec[Ticket] = Codec(Ticket)
PREFIX = "stage."
"""Of every queue's name."""


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
