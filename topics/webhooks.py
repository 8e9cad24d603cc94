"""`polar.webhooks`: what tasks' `callback_url`s are owed. The newest record of a task says how it stands: owed, or settled.

Written by the builder (a task's first Owed, in the transaction of its GroupFinished) and by webhooks (after each try); read by webhooks,
from the oldest debt on. Key: task id. Where no task has a `callback_url`, the topic is empty.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic
from topics.types.session import Status


class Owed(msgspec.Struct, frozen=True, tag="owed", omit_defaults=True):
    """A task's group is finished, and its `callback_url` doesn't know yet."""

    task_id: str
    url: str
    ended_ms: int
    """When the builder wrote the group's end."""
    rewards: list[float | None]
    """By sample index, as in GroupFinished."""
    statuses: list[Status]
    output: str | None = None
    """Suffix of the trajectories topic; None: the default one."""
    tries: int = 0
    """All in vain."""
    failed_ms: int = 0
    """When the first of them failed; 0: none did."""
    due_ms: int = 0
    """When the next one is due; 0: at once."""
    why: str = ""
    """Why the last one failed, for people."""


class Settled(msgspec.Struct, frozen=True, tag="settled", omit_defaults=True):
    """Nothing is owed any more."""

    task_id: str
    outcome: str
    """`delivered`, or a dead letter says why not: `gone` (410), `refused` (not in POLAR_WEBHOOK_HOSTS), `given_up` (after a day)."""
    tries: int


Record = Owed | Settled
RECORDS = (Owed, Settled)
CODEC: Codec[Record] = Codec(*RECORDS)
TOPIC = Topic(
    name="webhooks",
    records=RECORDS,
    key="task id",
    writers="builder; webhooks",
    readers="webhooks",
    # What is owed is written anew with each try, an hour apart at most.
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
    copartitioned=True,
)
