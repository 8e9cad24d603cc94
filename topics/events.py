"""`polar.events`: facts, named in the past tense. The coordinator that owns the partition decides what follows from them.

Written by fanout, stage workers, the control API and the builder; read by the coordinator, analytics and `polar watch`. Key: session id,
or task id for a fact without a session. A session's facts are in order. A fact that is sent again keeps its `fact_id` (protocol 19).
Facts about a claim (`ClaimFact`) have the header `claim-mac`; without the right one they change nothing (protocol 33).
"""

from __future__ import annotations

import math
import re
from typing import get_args

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
    """A worker took a ticket and claims it. Sent again, unchanged, every 3 s until answered (protocol 8)."""

    fact_id: str
    session_id: str
    attempt: int
    stage: Stage
    claim_id: str
    worker_id: str


class InitFinished(msgspec.Struct, frozen=True, tag="init_finished", omit_defaults=True):
    """A runtime was made, or failed with an error."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str
    runtime: dict[str, str] | None = None
    """The handle that the other stages attach to; None with an error."""
    error: SessionError | None = None
    duration_ms: int = 0
    unenforced: list[str] | None = None
    """Limits that the runtime doesn't enforce on this host (`RuntimeBackend.unenforced`). Those of the verifier's own sandbox begin with
    `verifier.`. None: the worker doesn't report them."""


class RunFinished(msgspec.Struct, frozen=True, tag="run_finished", omit_defaults=True):
    """The harness ended, and none of its processes lives."""

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
    lost_artifacts: list[str] | None = None
    """Names of artifacts that the blob store didn't take, and `patch` if it couldn't be made and the agent isn't why. None: there are none,
    or the worker is older than this field."""
    warning: str | None = None
    """A message for people about settings of the task that don't fit its engine. None: all fit, or the worker is older than this field."""


class Evaluated(msgspec.Struct, frozen=True, tag="evaluated", omit_defaults=True):
    """An evaluation ended, with a reward or an error."""

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
    reason: str | None = None
    """Why the reward is what it is, in the evaluator's words; None: it gave no reason."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped", omit_defaults=True):
    """After a Revoke: no process of this claim lives any more."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str


class HandedBack(msgspec.Struct, frozen=True, tag="handed_back", omit_defaults=True):
    """A worker that shuts down returns a claim, none of whose processes lives any more. Costs no attempt."""

    fact_id: str
    session_id: str
    attempt: int
    claim_id: str


class CancelRequested(msgspec.Struct, frozen=True, tag="cancel_requested", omit_defaults=True):
    """A user cancelled a task or one of its sessions. Valid even before the task is known."""

    fact_id: str
    task_id: str
    session_id: str | None = None
    """None: the whole task."""


class SessionOpenRequested(msgspec.Struct, frozen=True, tag="session_open_requested", omit_defaults=True):
    """A user requests a session for their own agent. Sent again, unchanged, every 3 s until answered (protocol 28).

    The answer on `polar.control` has its claim id: a Grant, or a Revoke with the reason. Key: task id.
    """

    fact_id: str
    task_id: str
    """A new id opens a task; the id of an opened task requests its next sample."""
    claim_id: str
    """Chosen by the sender; names the claim whose calls the trajectory holds."""
    ttl_ms: int
    """Log time from the Grant to the session's end."""
    num_samples: int | None = None
    """Samples of a task that this fact opens; None means 1. For a task that is already open: None or an equal number."""
    mode: str = "train"
    """`train` or `eval`; equal for all samples of a task."""
    run: str | None = None
    """The run of a task that this fact opens. For a task that is already open: None or its run."""
    label: str | None = None
    """The user's name for this session; None: none."""


class SessionOpenWithdrawn(msgspec.Struct, frozen=True, tag="session_open_withdrawn", omit_defaults=True):
    """The request for a session was withdrawn before a key was made: its sample is free again. Key: task id."""

    fact_id: str
    task_id: str
    claim_id: str


class SessionCloseRequested(msgspec.Struct, frozen=True, tag="session_close_requested", omit_defaults=True):
    """A user closes an opened session. The first close counts and gets a Grant with the fact's id; others get a Revoke."""

    fact_id: str
    session_id: str
    reward: float | None = None
    """None: no reward is known."""
    is_forced: bool = False
    """The reward counts even if the session has no answered call."""


class TrajectoryEmitted(msgspec.Struct, frozen=True, tag="trajectory_emitted", omit_defaults=True):
    """The builder wrote a session's trajectory, in the transaction of this fact."""

    fact_id: str
    session_id: str
    attempt: int
    traces: int = 0
    trainable_tokens: int = 0
    calls: int = 0
    status: Status | None = None
    """The trajectory's status: FAILED if the build failed. None: written by an older builder, with the requested status."""
    error: SessionError | None = None
    reward: float | None = None


class GroupEmitted(msgspec.Struct, frozen=True, tag="group_emitted", omit_defaults=True):
    """The builder wrote `GroupFinished`, in the transaction of this fact. Key: task id."""

    fact_id: str
    task_id: str


Fact = (
    TaskSubmitted | Claimed | InitFinished | RunFinished | Evaluated | Stopped | HandedBack | CancelRequested
    | SessionOpenRequested | SessionOpenWithdrawn | SessionCloseRequested | TrajectoryEmitted | GroupEmitted
)  # fmt: skip
RECORDS: tuple[type[Fact], ...] = get_args(Fact)
ClaimFact = Claimed | InitFinished | RunFinished | Evaluated | Stopped | HandedBack
"""Facts that only the worker with the claim may report."""
CODEC: Codec[Fact] = Codec(*RECORDS)
TOPIC = Topic(
    name="events",
    records=RECORDS,
    key="session id; task id where there is no session",
    writers="fanout, stage workers, control API, builder",
    readers="coordinator, analytics, polar watch",
    retention_ms=7 * DAY_MS,
    partitions=12,
    embedded_partitions=4,
    copartitioned=True,
)


BUDGET_LIMIT_S = 7 * DAY_MS / 1000
"""No stage may last longer than the log: fanout's limits are narrower."""
TTL_LIMIT_S = DAY_MS / 1000
"""The control API's (protocol 28)."""


def flaw(fact: Fact) -> str | None:
    """The reason to reject a fact that bypassed fanout and the control API, since its names become topics and its numbers deadlines; None
    for valid facts."""
    if isinstance(fact, SessionCloseRequested) and not (fact.reward is None or math.isfinite(fact.reward)):
        return f"reward: must be a finite number (got {fact.reward})"
    if not isinstance(fact, TaskSubmitted | SessionOpenRequested):
        return None
    names: list[tuple[str, str | None, str]] = [("task_id", fact.task_id, ids.TASK_ID)]
    if isinstance(fact, TaskSubmitted):
        plan = fact.plan
        numbers = [
            ("plan.init_budget_s", plan.init_budget_s, BUDGET_LIMIT_S),
            ("plan.run_budget_s", plan.run_budget_s, BUDGET_LIMIT_S),
            ("plan.evaluate_budget_s", plan.evaluate_budget_s, BUDGET_LIMIT_S),
        ]
        names += [
            ("plan.pool", plan.pool, ids.NAME),
            ("plan.output", plan.output, ids.NAME),
            ("plan.run", plan.run, ids.RUN),
        ]
    else:
        numbers = [("ttl_ms", fact.ttl_ms / 1000, TTL_LIMIT_S)]
        names += [("run", fact.run, ids.RUN), ("label", fact.label, ids.LABEL)]
    for field, number, limit in numbers:
        if not 0 <= number <= limit:
            return f"{field}: must be 0 to {limit:g} s (got {number})"
    for field, name, pattern in names:
        if name is not None and re.fullmatch(pattern, name) is None:
            return f"{field}: must match {pattern} (got {name[:200]!r})"
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
