"""The partition of a task's records: the Java client's murmur2 of the task id, masked positive (protocol 30).

The producer sets it, so co-partitioned topics agree whatever a record's key is.
"""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

from topics.types.session import task_id_of

TASK_ID_CHARACTERS = 128
"""As `topics/types/ids.py` has it. A longer one isn't hashed: that takes a second for some MB."""


@lru_cache(maxsize=4096)  # murmur2 is pure Python, and a session has many records
def partition_of_task(task_id: str, partitions: int) -> int:
    """The partition of a task's records on a co-partitioned topic."""
    hashed: int = murmur2(task_id.encode())
    return (hashed & 0x7FFFFFFF) % partitions


def misplaced(task_id: str, partition: int, partitions: int) -> str | None:
    """The reason to reject a record that lies in another partition than its task's, where nobody else's decisions on the task are."""
    if len(task_id) > TASK_ID_CHARACTERS:
        return f"task_id: at most {TASK_ID_CHARACTERS} characters (got {task_id[:200]!r}…)"
    right = partition_of_task(task_id, partitions)
    return None if right == partition else f"task_id: its partition is {right} (got {task_id[:200]!r})"


def partition_of_session(session_id: str, partitions: int) -> int:
    """The partition of a session's records, which is its task's."""
    return partition_of_task(task_id_of(session_id), partitions)
