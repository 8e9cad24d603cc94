"""`polar.webhooks`: deliveries to tasks' `callback_url`s. A task's newest record tells whether its delivery is owed or settled.

Written by the builder (a task's first Owed, in the transaction of its GroupFinished) and by webhooks (after each try); read by webhooks,
from the oldest owed delivery on. Key: task id. Tasks without a `callback_url` have no records.
"""

from __future__ import annotations

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic
from topics.types.session import Status


class Owed(msgspec.Struct, frozen=True, tag="owed", omit_defaults=True):
    """A task's group is finished, and its `callback_url` has not confirmed the delivery."""

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
    """Failed tries."""
    failed_ms: int = 0
    """When the first try failed; 0: none did."""
    due_ms: int = 0
    """When the next try is due; 0: at once."""
    why: str = ""
    """Reason of the last failure, for people."""


class Settled(msgspec.Struct, frozen=True, tag="settled", omit_defaults=True):
    """The delivery ended."""

    task_id: str
    outcome: str
    """`delivered`, or the reason, which a dead letter explains: `gone` (410), `refused` (not in POLAR_WEBHOOK_HOSTS), `given_up` (after a
    day)."""
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
    # Each try writes the owed delivery again, at least once an hour.
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
    copartitioned=True,
)
