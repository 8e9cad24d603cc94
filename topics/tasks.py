"""`polar.tasks`: TaskRequests as JSON, written by users with any client and any partitioner, read by fanout.

Key: task id, but nothing relies on it. The order of tasks is not kept.
"""

from __future__ import annotations

from topics.contract.topic import DAY_MS, HOUR_MS, Topic

TOPIC = Topic(
    name="tasks",
    records=(),
    key="task id (any partitioner; nothing relies on where a task lies)",
    writers="users",
    readers="fanout",
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
    # A task may be read again until its segment is deleted: before the coordinator forgets the task, 8 d after its end (protocol 32).
    config={"segment.ms": str(12 * HOUR_MS)},
)
INLINE_LIMIT = 64 * 1024
"""Bytes of a canonical body; larger bodies go to the blob store (protocol 29)."""
