"""`polar.tasks`: TaskRequests as JSON, written by users with any client and any partitioner, read by fanout.

Key: task id, though nothing relies on it. Order between tasks is not kept.
"""

from __future__ import annotations

from topics.contract.topic import DAY_MS, Topic

TOPIC = Topic(
    name="tasks",
    records=(),
    key="task id (any partitioner; nothing relies on where a task lies)",
    writers="users",
    readers="fanout",
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
)
INLINE_LIMIT = 64 * 1024
"""Bytes of canonical body; what is larger goes to the blob store (protocol 29)."""
