"""`polar.sessions`: the coordinator's table. Compacted; keys `task:<id>`, `session:<id>` and, in each partition, `offset`.

Only the coordinator that owns the partition writes it, in the transaction of its decisions. Read by the next owner, by workers (reaping),
by status and `polar watch`. A tombstone deletes a row.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import MIB, Topic
from topics.types.session import SessionState, TaskState


class Position(msgspec.Struct, frozen=True, tag="position", omit_defaults=True):
    """Where the partition's next owner continues; key `offset`."""

    next_offset: int
    """In this partition of `polar.events`."""
    clock_ms: int
    """Log time of this partition, which stands still while Kafka is away (protocol 12)."""
    paused_ms: int = 0
    """Part of it during which the fleet was paused."""


Row = TaskState | SessionState | Position
RECORDS = (TaskState, SessionState, Position)
CODEC: Codec[Row] = Codec(*RECORDS)
TOPIC = Topic(
    name="sessions",
    records=RECORDS,
    key="task:<id>, session:<id>, offset",
    writers="coordinator",
    readers="coordinator, workers, polar watch, status",
    retention_ms=None,
    partitions=12,
    embedded_partitions=4,
    copartitioned=True,
    config={"segment.bytes": str(64 * MIB), "segment.ms": str(10 * 60 * 1000), "min.cleanable.dirty.ratio": "0.2"},
)


def key_of(row: Row) -> str:
    match row:
        case TaskState():
            return f"task:{row.task_id}"
        case SessionState():
            return f"session:{row.session_id}"
        case Position():
            return "offset"
