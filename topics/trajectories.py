"""`polar.trajectories[.<name>]`: one Trajectory per session, and GroupFinished after a task's last; trainers read it (read_committed).

Only the builder that owns the partition writes it, in transactions. Key: session id, or task id for a group. A group lies in one partition.
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
    """The output named by its own name, its topic's name or the topic's full name; None: the default output."""
    return (name or "").removeprefix(f"{namespace}.").removeprefix("trajectories").removeprefix(".") or None


TOPIC = topic()
EVAL = topic("eval")
