"""`polar.sessions`: the coordinator's table. Compacted; keys `task:<id>`, `session:<id>` and, in each partition, `offset`.

Written by the coordinator that owns the partition, alone, in the transaction that decides. Read by the next owner, by workers (reaping),
by status and the live page. A tombstone forgets a row.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import MIB, Topic
from topics.types.session import SessionState, TaskState


class Position(msgspec.Struct, frozen=True, tag="position", omit_defaults=True):
    """Where the next owner goes on; key `offset`."""

    next_offset: int
    """Of `polar.events`, this partition."""
    clock_ms: int
    """Log time of this partition: it stands still while Kafka is away (protocol 12)."""
    paused_ms: int = 0
    """So much of it the fleet was paused."""


Row = TaskState | SessionState | Position
RECORDS = (TaskState, SessionState, Position)
CODEC: Codec[Row] = Codec(*RECORDS)
TOPIC = Topic(
    name="sessions",
    records=RECORDS,
    key="task:<id>, session:<id>, offset",
    writers="coordinator",
    readers="coordinator, workers, live page, status",
    retention_ms=None,
    partitions=12,
    embedded_partitions=4,
    copartitioned=True,
    config={
        "segment.bytes": str(64 * MIB),
        "segment.ms": str(10 * 60 * 1000),
        "min.cleanable.dirty.ratio": "0.2",
    },
)


def key_of(row: Row) -> str:
    """The row's key."""
    match row:
        case TaskState():
            return f"task:{row.task_id}"
        case SessionState():
            return f"session:{row.session_id}"
        case Position():
            return "offset"
