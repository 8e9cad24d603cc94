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

TIME_LIMIT_MS = 253_402_300_800_000
"""The end of the year 9999."""
TRIES_LIMIT = 100_000
"""A delivery is tried for a day, at most once a second."""


def flaw(record: Record) -> str | None:
    """The reason to reject a record that the builder and webhooks didn't write, since times are added to its numbers; None for others."""
    if not 0 <= record.tries <= TRIES_LIMIT:
        return f"tries: must be 0 to {TRIES_LIMIT} (got {record.tries})"
    if isinstance(record, Owed):
        for field in ("ended_ms", "failed_ms", "due_ms"):
            if not 0 <= (value := getattr(record, field)) < TIME_LIMIT_MS:
                return f"{field}: must be Unix ms before the year 10000 (got {value})"
    return None
