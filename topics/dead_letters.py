"""`polar.dead-letters`: records that could not be processed, their bytes as they were, headers that say why and whence.

Written by any process, read by people. Key: the record's own. One partition.
"""

from __future__ import annotations

from topics.contract.topic import DAY_MS, MIB, Topic

TOPIC = Topic(
    name="dead-letters",
    records=(),
    key="the record's own",
    writers="any",
    readers="people",
    retention_ms=30 * DAY_MS,
    partitions=1,
    embedded_partitions=1,
    max_bytes=33 * MIB,
)

Header = tuple[str, bytes]


def headers(*, reason: str, field: str | None, process: str, topic: str, partition: int, offset: int) -> list[Header]:
    """The headers of a dead letter: `reason` for people, `field` where one is to blame, and whence the record came."""
    said = {
        "reason": reason,
        "field": field or "",
        "process": process,
        "source-topic": topic,
        "source-partition": str(partition),
        "source-offset": str(offset),
    }
    return [(name, value.encode()) for name, value in said.items()]
