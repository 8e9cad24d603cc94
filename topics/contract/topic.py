"""A topic's contract: each topic module declares one `Topic`, from which all other forms are rendered."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1024 * 1024
AHEAD_MS = DAY_MS
"""How far a writer's clock may be ahead of the broker's before the broker refuses its records. Kafka's default is an hour. A day is
longer than any error of time zones; without a limit, one record from the far future would keep all later segments from being deleted."""


@dataclass(frozen=True)
class Topic:
    """A topic's contract. Sizes in bytes, durations in ms."""

    name: str
    """Name without the namespace."""
    records: tuple[type[msgspec.Struct], ...]
    """Record types, msgpack with a `type` tag; empty: JSON written by people (`polar.tasks`)."""
    key: str
    """Description of the key."""
    writers: str
    readers: str
    retention_ms: int | None
    """None: compacted."""
    partitions: int
    embedded_partitions: int
    """Partitions on the embedded broker."""
    max_bytes: int = 8 * MIB
    copartitioned: bool = False
    """The partition is `murmur2(task_id) mod n`; n is equal for all such topics and fixed at creation."""
    log_append_time: bool = False
    """Timestamps come from the broker (protocol 12)."""
    config: dict[str, str] = field(default_factory=dict)
    """Further broker settings."""

    def full_name(self, namespace: str) -> str:
        return f"{namespace}.{self.name}"

    def broker_config(self, min_insync: int) -> dict[str, str]:
        """The topic's settings on the broker (Kafka 4.3 topic configs)."""
        config = {
            "compression.type": "producer",
            "max.message.bytes": str(self.max_bytes),
            "min.insync.replicas": str(min_insync),
            "unclean.leader.election.enable": "false",
            "message.timestamp.type": "LogAppendTime" if self.log_append_time else "CreateTime",
            "message.timestamp.after.max.ms": str(AHEAD_MS),
        }
        if self.retention_ms is None:
            config["cleanup.policy"] = "compact"
        else:
            config["cleanup.policy"] = "delete"
            config["retention.ms"] = str(self.retention_ms)
            # Only whole, closed segments are deleted: a long segment would outlive the retention (protocol 30).
            config["segment.ms"] = str(self.retention_ms // 4)
        return config | self.config

    def partition_count(self, embedded: bool) -> int:
        return self.embedded_partitions if embedded else self.partitions


def duration(ms: int) -> str:
    """`7 d`, or `1 h` for less than a day."""
    return f"{ms / DAY_MS:g} d" if ms >= DAY_MS else f"{ms / HOUR_MS:g} h"
