"""`polar.completions`: a session's calls, and the records that begin and end their collection for a trajectory.

Written by the proxy (Completion, Disowned, RefusedRequest), the coordinator (Open, Build, CloseGroup; transactional) and the builder
(Emitted; transactional). Read by the builder, analytics and recovering proxies. Key: session id, or task id for groups. A session's records
are in order.
"""

from __future__ import annotations

import re

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, MIB, Topic
from topics.types import ids
from topics.types.completion import Completion
from topics.types.errors import SessionError
from topics.types.session import Accounting, Status, session_id_of, task_id_of


class Disowned(msgspec.Struct, frozen=True, tag="disowned", omit_defaults=True):
    """The proxy gave up a call, which was never answered; its Completion may still arrive (protocol 19)."""

    call_id: str
    session_id: str
    claim_id: str
    reason: str
    """`unacknowledged`, `closed` or `hung_up`."""


FIRST_REFUSED = 20
"""A proxy records each of a claim's first 20 refused requests. Of later ones it records one each time that their number has doubled."""


class RefusedRequest(msgspec.Struct, frozen=True, tag="refused_request", omit_defaults=True):
    """The proxy refused a request that had a valid key, and made no call of it. Sent in the background, so it may be lost.

    A proxy records the first 20 of a claim, then one each time that their number has doubled.
    """

    session_id: str
    attempt: int
    claim_id: str
    refused_at: int
    """Unix ms on the proxy's clock."""
    method: str
    """At most 20 characters."""
    path: str
    """Without key and query, at most 200 characters."""
    status: int
    """HTTP status of the answer."""
    code: str
    """Stable, for programs: `invalid`, `not_found`, `too_large`, `slow`, `spent` or `upgrade`."""
    message: str
    """As in the answer, at most 300 characters."""
    client: str | None = None
    """As in `Completion`."""
    requests: int = 1
    """The requests that this record counts: this one, and those that this proxy refused since its last record of the claim."""


class Open(msgspec.Struct, frozen=True, tag="open", omit_defaults=True):
    """From here on this attempt's calls count, until a newer Open replaces this one (protocol 23)."""

    session_id: str
    attempt: int
    claim_id: str


class Build(msgspec.Struct, frozen=True, tag="build", omit_defaults=True):
    """The session is over: build its trajectory from this attempt's calls."""

    session_id: str
    task_id: str
    sample_index: int
    num_samples: int
    attempt: int
    claim_id: str
    """The run claim whose calls count; empty if no run was granted."""
    status: Status
    builder: str
    builder_config: bytes
    harness: str
    reward: float | None = None
    call_rewards: dict[str, float] | None = None
    error: SessionError | None = None
    accounting: Accounting = Accounting()
    artifacts: dict[str, str] | None = None
    metadata: bytes = b"{}"
    output: str | None = None
    """Suffix of the trajectories topic; None: the default one."""
    mode: str = "train"
    reward_reason: str | None = None
    """As in the session's row."""
    run: str | None = None
    """As in the TaskRequest."""
    label: str | None = None
    """As in the session's row."""
    reward_needs_call: bool = False
    """The reward counts only if a call was answered. Set for an opened session, unless its close is forced."""


class CloseGroup(msgspec.Struct, frozen=True, tag="close_group", omit_defaults=True):
    """All trajectories of a task are written: write its GroupFinished. Key: task id."""

    task_id: str
    num_samples: int
    rewards: list[float | None]
    """By sample index."""
    statuses: list[Status]
    output: str | None = None
    callback_url: str | None = None
    run: str | None = None


class Emitted(msgspec.Struct, frozen=True, tag="emitted", omit_defaults=True):
    """A session's trajectory, or a GroupFinished, is written, in the transaction of this record (protocol 25)."""

    task_id: str
    session_id: str | None = None
    """None for the group."""


CallRecord = Completion | Disowned | RefusedRequest | Open | Build | CloseGroup | Emitted


def flaw(record: CallRecord) -> str | None:
    """The reason to reject a record that no coordinator wrote, since its names become topics and ids; None for all others."""
    match record:
        case Build() if record.session_id != session_id_of(record.task_id, record.sample_index):
            return f"session_id: isn't a sample of {record.task_id[:200]!r} (got {record.session_id[:200]!r})"
        case Build() | CloseGroup() if not 1 <= record.num_samples <= ids.SAMPLES_LIMIT:
            return f"num_samples: must be 1 to {ids.SAMPLES_LIMIT} (got {record.num_samples})"
        case CloseGroup() if not record.num_samples == len(record.rewards) == len(record.statuses):
            return f"rewards: one for each of {record.num_samples} samples (got {len(record.rewards)})"
        case Build(output=str(output)) | CloseGroup(output=str(output)) if re.fullmatch(ids.NAME, output) is None:
            return f"output: must match {ids.NAME} (got {output[:200]!r})"
    return None


def task_of(record: CallRecord) -> str:
    """The task whose partition a record belongs to."""
    return record.task_id if isinstance(record, CloseGroup | Emitted) else task_id_of(record.session_id)


RECORDS = (Completion, Disowned, RefusedRequest, Open, Build, CloseGroup, Emitted)
CODEC: Codec[CallRecord] = Codec(*RECORDS)
TOPIC = Topic(
    name="completions",
    records=RECORDS,
    key="session id; task id for a group",
    writers="proxy; coordinator; builder",
    readers="builder, analytics, proxy (recovery)",
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
    max_bytes=32 * MIB,
    copartitioned=True,
)
