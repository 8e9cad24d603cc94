"""`polar.events`: facts. What happened, in the past tense; the coordinator that owns the partition decides what follows.

Written by fanout, stage workers, the control API and the builder; read by the coordinator, analytics and the live page. Key: session id,
task id where there is no session. A session's facts are in order. Each carries `fact_id`, the same when it is sent again (protocol 19).
"""

from __future__ import annotations

import re

import msgspec

from topics.contract.codec import Codec
from topics.contract.topic import DAY_MS, Topic
from topics.types import ids
from topics.types.errors import SessionError
from topics.types.session import Plan, Stage, Status


class TaskSubmitted(msgspec.Struct, frozen=True, tag="task_submitted", omit_defaults=True):
    """Fanout read a valid TaskRequest."""

    fact_id: str
    task_id: str
    num_samples: int
    body_hash: str
    plan: Plan
    body: bytes | None = None
    """Canonical JSON, up to `tasks.INLINE_LIMIT`."""
    body_ref: str | None = None


class Claimed(msgspec.Struct, frozen=True, tag="claimed", omit_defaults=True):
    """A worker took a ticket and asks for it. Sent again, unchanged, every 3 s until answered (protocol 8)."""

    fact_id: str
    session_id: str
    attempt: int
    stage: Stage
    claim_id: str
    worker_id: str


class InitFinished(msgspec.Struct, frozen=True, tag="init_finished", omit_defaults=True):
    """A runtime is made, or could not be."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str
    runtime: dict[str, str] | None = None
    """The handle that the other stages attach to; None with an error."""
    error: SessionError | None = None
    duration_ms: int = 0


class RunFinished(msgspec.Struct, frozen=True, tag="run_finished", omit_defaults=True):
    """The harness has ended and no process of it lives."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str
    status: Status
    """COMPLETED, FAILED (with an error) or TIMED_OUT."""
    exit_code: int | None = None
    error: SessionError | None = None
    artifacts: dict[str, str] | None = None
    duration_ms: int = 0


class Evaluated(msgspec.Struct, frozen=True, tag="evaluated", omit_defaults=True):
    """An evaluator gave a verdict, or could not."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str
    reward: float | None = None
    """None: the evaluator gave none."""
    call_rewards: dict[str, float] | None = None
    error: SessionError | None = None
    artifacts: dict[str, str] | None = None
    duration_ms: int = 0


class Stopped(msgspec.Struct, frozen=True, tag="stopped", omit_defaults=True):
    """After a Revoke: nothing of this claim lives any more."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str


class HandedBack(msgspec.Struct, frozen=True, tag="handed_back", omit_defaults=True):
    """A worker that shuts down gives a claim back; nothing of it lives any more. Costs no attempt."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str


class CancelRequested(msgspec.Struct, frozen=True, tag="cancel_requested", omit_defaults=True):
    """Someone wants a task, or one session of it, to end. Valid before the task is known."""

    fact_id: str
    task_id: str
    session_id: str | None = None
    """None: the whole task."""


class SessionOpenRequested(msgspec.Struct, frozen=True, tag="session_open_requested", omit_defaults=True):
    """Someone brings an agent of their own and asks for a session. Sent again, unchanged, every 3 s until answered (protocol 28).

    Answered on `polar.control` under its claim id: with a Grant, or a Revoke that says why not. Key: task id.
    """

    fact_id: str
    task_id: str
    """A new one opens a task; one that was opened gives its next sample."""
    claim_id: str
    """The asker's choice; names the claim whose calls the trajectory holds."""
    ttl_ms: int
    """Log time from the Grant to the session's end."""
    num_samples: int | None = None
    """Of a task that is opened by this; None: 1. None, or the same, for one that is open already."""
    mode: str = "train"
    """`train` or `eval`, one for all samples of a task."""


class SessionOpenWithdrawn(msgspec.Struct, frozen=True, tag="session_open_withdrawn", omit_defaults=True):
    """Whoever asked for a session waits no more, and no key was made: its sample is free again. Key: task id."""

    fact_id: str
    task_id: str
    claim_id: str


class SessionCloseRequested(msgspec.Struct, frozen=True, tag="session_close_requested", omit_defaults=True):
    """The agent of an opened session is done. Answered by the fact's id: with a Grant for the first, which counts, else a Revoke."""

    fact_id: str
    session_id: str
    reward: float | None = None
    """None: no reward is known."""


class TrajectoryEmitted(msgspec.Struct, frozen=True, tag="trajectory_emitted", omit_defaults=True):
    """The builder put a session's trajectory on its topic, in the same transaction as this."""

    fact_id: str
    session_id: str
    attempt: int
    traces: int = 0
    trainable_tokens: int = 0
    calls: int = 0
    status: Status | None = None
    """As the trajectory says: a build that failed makes a session FAILED. None: from an older builder, as it was asked for."""
    error: SessionError | None = None
    reward: float | None = None


class GroupEmitted(msgspec.Struct, frozen=True, tag="group_emitted", omit_defaults=True):
    """The builder put `GroupFinished` on its topic, in the same transaction as this. Key: task id."""

    fact_id: str
    task_id: str


Fact = (
    TaskSubmitted
    | Claimed
    | InitFinished
    | RunFinished
    | Evaluated
    | Stopped
    | HandedBack
    | CancelRequested
    | SessionOpenRequested
    | SessionOpenWithdrawn
    | SessionCloseRequested
    | TrajectoryEmitted
    | GroupEmitted
)
RECORDS = (
    TaskSubmitted,
    Claimed,
    InitFinished,
    RunFinished,
    Evaluated,
    Stopped,
    HandedBack,
    CancelRequested,
    SessionOpenRequested,
    SessionOpenWithdrawn,
    SessionCloseRequested,
    TrajectoryEmitted,
    GroupEmitted,
)
CODEC: Codec[Fact] = Codec(*RECORDS)
TOPIC = Topic(
    name="events",
    records=RECORDS,
    key="session id; task id where there is no session",
    writers="fanout, stage workers, control API, builder",
    readers="coordinator, analytics, live page",
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
    copartitioned=True,
)


_TASK_ID, _NAME = re.compile(ids.TASK_ID), re.compile(ids.NAME)


def flaw(fact: Fact) -> str | None:
    """Why a task that a fact begins can't be kept: it came past fanout and the control API, and would name topics; None for all others."""
    if not isinstance(fact, TaskSubmitted | SessionOpenRequested):
        return None
    names = [("task_id", fact.task_id, _TASK_ID)]
    if isinstance(fact, TaskSubmitted):
        plan = fact.plan
        names += [("plan.pool", plan.pool, _NAME)] + (
            [] if plan.output is None else [("plan.output", plan.output, _NAME)]
        )
    for field, name, pattern in names:
        if pattern.fullmatch(name) is None:
            return f"{field}: must match {pattern.pattern} (got {name[:200]!r})"
    if fact.num_samples is not None and not 1 <= fact.num_samples <= ids.SAMPLES_LIMIT:
        return f"num_samples: must be 1 to {ids.SAMPLES_LIMIT} (got {fact.num_samples})"
    return None


def task_of(fact: Fact) -> str:
    """The task that a fact is about."""
    if isinstance(fact, TaskSubmitted | CancelRequested | SessionOpenRequested | SessionOpenWithdrawn | GroupEmitted):
        return fact.task_id
    return fact.session_id.rpartition(".")[0]


def key_of(fact: Fact) -> str:
    """The record's key: session id, or task id where there is no session."""
    session_id = getattr(fact, "session_id", None)
    return session_id or task_of(fact)
