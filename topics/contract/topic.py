"""What a topic's contract is made of; each topic module declares one `Topic`, and every other form is rendered from it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1024 * 1024


@dataclass(frozen=True)
class Topic:
    """One topic's contract. Sizes in bytes, durations in ms."""

    name: str
    """Without the namespace."""
    records: tuple[type[msgspec.Struct], ...]
    """The record types that it carries, msgpack with a `type` tag; empty: JSON written by people (`polar.tasks`)."""
    key: str
    """What the key is, for people."""
    writers: str
    readers: str
    retention_ms: int | None
    """None: compacted."""
    partitions: int
    embedded_partitions: int
    """On a broker that has this machine to itself."""
    max_bytes: int = 8 * MIB
    copartitioned: bool = False
    """Partition is `murmur2(task_id) mod n`, the same n for all such topics, fixed at creation."""
    log_append_time: bool = False
    """Timestamps are the broker's (protocol 12)."""
    config: dict[str, str] = field(default_factory=dict)
    """Broker settings beyond those that the fields above give."""

    def full_name(self, namespace: str) -> str:
        """The name on the broker."""
        return f"{namespace}.{self.name}"

    def broker_config(self, min_insync: int) -> dict[str, str]:
        """The topic's settings on the broker (Kafka 4.3 topic configs)."""
        config = {
            "compression.type": "producer",
            "max.message.bytes": str(self.max_bytes),
            "min.insync.replicas": str(min_insync),
            "unclean.leader.election.enable": "false",
            "message.timestamp.type": "LogAppendTime" if self.log_append_time else "CreateTime",
        }
        if self.retention_ms is None:
            config["cleanup.policy"] = "compact"
        else:
            config["cleanup.policy"] = "delete"
            config["retention.ms"] = str(self.retention_ms)
            # A segment is deleted whole, and only once it is closed: a long one would outlive the retention (protocol 30).
            config["segment.ms"] = str(self.retention_ms // 4)
        return config | self.config

    def partition_count(self, embedded: bool) -> int:
        return self.embedded_partitions if embedded else self.partitions
