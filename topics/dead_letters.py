"""`polar.dead-letters`: records that could not be processed: their unchanged bytes, with reason and origin as headers.

Any process writes it, people read it. Key: the record's own. One partition.
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
    """The headers of a dead letter: a `reason` for people, the invalid `field` if there is one, and the record's origin."""
    fields = {
        "reason": reason,
        "field": field or "",
        "process": process,
        "source-topic": topic,
        "source-partition": str(partition),
        "source-offset": str(offset),
    }
    return [(name, value.encode()) for name, value in fields.items()]
