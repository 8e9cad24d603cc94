"""`polar.trajectories[.<name>]`: what trainers read, read_committed. A session's Trajectory once; after a task's last, its GroupFinished.

Written by the builder that owns the partition, alone, transactionally. Key: session id, task id for a group. A group lies in one partition.
"""

from __future__ import annotations

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, MIB, Topic
from topics.types.trajectory import GroupFinished, Trajectory

Output = Trajectory | GroupFinished
RECORDS = (Trajectory, GroupFinished)
CODEC: Codec[Output] = Codec(*RECORDS)


def topic(output: str | None = None) -> Topic:
    """The default topic, or a named one (`eval`, a task's `output_topic`)."""
    return Topic(
        name="trajectories" if output is None else f"trajectories.{output}",
        records=RECORDS,
        key="session id; task id for a group",
        writers="builder",
        readers="trainers, analytics, webhooks",
        retention_ms=14 * DAY_MS,
        partitions=12,
        embedded_partitions=4,
        max_bytes=32 * MIB,
        copartitioned=True,
    )


def output_named(name: str | None, namespace: str) -> str | None:
    """The output that someone means by its name, by its topic's, or by the topic's full name; None: the default."""
    return (name or "").removeprefix(f"{namespace}.").removeprefix("trajectories").removeprefix(".") or None


TOPIC = topic()
EVAL = topic("eval")
