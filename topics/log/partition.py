"""Which partition a task's records lie in: the Java client's murmur2, masked positive, of the task id (protocol 30).

Set by the producer, so that the co-partitioned topics agree whatever a record's key is.
"""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

from topics.types.session import task_id_of


@lru_cache(maxsize=4096)  # murmur2 is Python's own, byte by byte, and a session's records are many
def partition_of_task(task_id: str, partitions: int) -> int:
    """Partition of all of a task's records on a co-partitioned topic."""
    hashed: int = murmur2(task_id.encode())
    return (hashed & 0x7FFFFFFF) % partitions


def partition_of_session(session_id: str, partitions: int) -> int:
    """Partition of a session's records: its task's."""
    return partition_of_task(task_id_of(session_id), partitions)
