"""`polar.verifications`: what an engine says of finished traces when it scores them again (`polar verify`).

Written by `polar verify`; read by analytics. Key: session id. A trace that is verified again has several records, and the newest counts.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic


class Verification(msgspec.Struct, frozen=True, tag="verification", omit_defaults=True):
    """One trace, scored again by one engine. Differences are |recorded logprob - scored logprob|, in nats, over `tokens` tokens."""

    session_id: str
    trace_id: str
    engine: str
    """Name of the engine that sampled the tokens, in the proxies' settings."""
    server: str
    """URL of the server that scored them."""
    verified_at: int
    """Unix ms."""
    tokens: int
    """Tokens that were scored; at least one."""
    median: float
    p99: float
    largest: float
    limit: float
    """Nats: the p99 that the person who verified accepts."""
    over: int
    """Scored tokens whose difference is above `limit`."""
    logprobs: bytes
    """float32 LE: the scored logprob of each token that the trace trains, in order; NaN for a token that wasn't scored."""
    policy_version: int | None = None
    """Version of the weights that sampled and scored the tokens; None: unknown."""
    publication: int | None = None
    """Publication of that version; None: unknown."""
    unscored: dict[str, int] = {}
    """The engine's trained tokens that weren't scored, by reason."""
    output: str | None = None
    """Suffix of the trajectories topic that holds the trace; None: the default one."""


RECORDS = (Verification,)
CODEC: Codec[Verification] = Codec(*RECORDS)
TOPIC = Topic(
    name="verifications",
    records=RECORDS,
    key="session id",
    writers="polar verify",
    readers="analytics",
    retention_ms=30 * DAY_MS,
    partitions=1,
    embedded_partitions=1,
)
