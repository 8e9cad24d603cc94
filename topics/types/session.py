"""States of sessions and tasks, the rows of the coordinator's table (`polar.sessions`).

Rows are frozen: a transition makes a new value. Times are `clock` milliseconds: log time of the partition, which stands still while
Kafka is away (protocol 12), never a host's clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from topics.types.errors import SessionError


class Stage(StrEnum):
    """A stage of workers' work."""

    INIT = "init"
    RUN = "run"
    EVALUATE = "evaluate"


class Phase(StrEnum):
    """A session's phase. In three of them a session waits for a slot, in three a worker has a granted claim on it."""

    UNOPENED = "unopened"
    """A sample of an opened task that nobody has requested yet (protocol 28)."""
    QUEUED = "queued"
    """Waits for an init slot."""
    INIT = "init"
    """An init claim is granted."""
    READY = "ready"
    """Has its runtime; waits for a run slot."""
    RUNNING = "running"
    """A run claim is granted; or the session is opened, and a user's own agent works."""
    RAN = "ran"
    """Its harness ended; waits for an evaluate slot."""
    EVALUATING = "evaluating"
    """An evaluate claim is granted."""
    CLOSING = "closing"
    """Its key is closed, but its harness may be alive: `Build` follows once it is dead, or after 2 s (protocol 17)."""
    BUILDING = "building"
    """`Build` is on the log; waits for the builder."""
    ENDED = "ended"
    """Its trajectory is written."""


WAITING_PHASES = {Stage.INIT: Phase.QUEUED, Stage.RUN: Phase.READY, Stage.EVALUATE: Phase.RAN}
"""The phase in which a session waits for a slot of the stage."""
CLAIMED_PHASES = {Stage.INIT: Phase.INIT, Stage.RUN: Phase.RUNNING, Stage.EVALUATE: Phase.EVALUATING}
"""The phase that a granted claim of the stage leads to."""
WAITING_STAGES = {phase: stage for stage, phase in WAITING_PHASES.items()}
CLAIMED_STAGES = {phase: stage for stage, phase in CLAIMED_PHASES.items()}


class Status(StrEnum):
    """How a session ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"


class Accounting(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Times of a session's last attempt, in milliseconds of log time (`*_queued_ms`) or of the worker's clock."""

    init_queued_ms: int = 0
    init_ms: int = 0
    run_queued_ms: int = 0
    run_ms: int = 0
    evaluate_queued_ms: int = 0
    evaluate_ms: int = 0
    attempts_lost: int = 0


class SessionState(msgspec.Struct, frozen=True, gc=False, tag="session", omit_defaults=True):
    """A session's row; key `session:<id>`. Only the coordinator that owns its partition writes it.

    Rows skip garbage collection (`gc=False`): they hold no cycles, and a coordinator keeps a hundred thousand of them.
    """

    session_id: str
    task_id: str
    sample_index: int
    phase: Phase
    since: int
    """Clock, ms: when this phase began."""
    attempt: int = 1
    spent: int = 0
    """Attempts that granted claims used up; the session fails when this reaches `max_attempts`."""
    ticket_released_at: int | None = msgspec.field(default=None, name="lent_at")
    """Waiting phases: clock of the newest ticket's release; None: the session needs a slot."""
    releases: int = 0
    """Tickets released for this stage of this attempt; without one no claim counts."""
    claim_id: str | None = None
    """The granted claim, in phases with one and in CLOSING."""
    worker_id: str | None = None
    runtime: dict[str, str] | None = None
    """Handle of the runtime from init, to which the other stages attach; None again once its worker removes it."""
    init_claim_id: str | None = None
    """The claim that made `runtime` and labels it."""
    run_claim_id: str | None = None
    """The claim whose calls the trajectory holds; None until a run is granted in this attempt."""
    past_claims: list[str] = []
    """Run claims of earlier attempts: their keys stay closed, and a new owner repeats that."""
    revoked_claims: list[str] = []
    """Revoked init and evaluate claims, which a new owner revokes again until the session has ended."""
    log_offset: int | None = None
    """Offset of this attempt's `Open` in `polar.completions`."""
    status: Status | None = None
    """Set once the run has ended."""
    exit_code: int | None = None
    error: SessionError | None = None
    reward: float | None = None
    call_rewards: dict[str, float] | None = None
    """Rewards by call id, if the evaluator returns them."""
    artifacts: dict[str, str] | None = None
    """Name to blob reference or path: agent log, evaluation output."""
    evaluations_lost: int = 0
    accounting: Accounting = Accounting()
    ttl_ms: int | None = None
    """Opened sessions: clock time from the Grant to the end. None: not opened, or run by workers."""
    calls: int = 0
    """Calls in its trajectory, once that is written."""
    trainable_tokens: int = 0
    reward_reason: str | None = None
    """Why the reward is what it is: the evaluator's words, or the error of the evaluation; None: no reason was given."""
    evaluation_error: SessionError | None = None
    """Set if the evaluation failed, so there is no reward. `error` is the run's own error if it has one."""
    backend: str | None = None
    """The kind of this attempt's runtime."""
    unenforced: list[str] | None = None
    """What that runtime doesn't enforce, and with `verifier.` before it what the verifier's own doesn't; None: nobody reported it."""
    paused_ms: int = 0
    """Total of the partition's pauses when the run began; later pauses don't count against the run's deadline (protocol 18)."""
    lost_artifacts: list[str] | None = None
    """`lost_artifacts` of the run's fact; None: none that a worker reported."""
    run_warning: str | None = None
    """`warning` of the run's fact; None: none."""
    label: str | None = None
    """The user's name for an opened session (`polar session open --label`); None: none."""
    reward_needs_call: bool = False
    """As in its Build."""


class TaskState(msgspec.Struct, frozen=True, gc=False, tag="task", omit_defaults=True):
    """A task's row; key `task:<id>`. A task that was cancelled before it was known has no body yet."""

    task_id: str
    num_samples: int = 0
    body_hash: str | None = None
    """sha256 of the canonical body; empty for an opened task, which has no body; None until the task is known."""
    body: bytes | None = None
    """A small TaskRequest, as canonical JSON; None once the group is closed."""
    body_ref: str | None = None
    """Blob reference of a large TaskRequest; None once the group is closed."""
    plan: Plan | None = None
    ended: int = 0
    """Sessions whose trajectory is written."""
    usable: int = 0
    """Ended sessions that a trainer can use: with a reward and trainable tokens."""
    cancelled: bool = False
    cancelled_sessions: list[str] = []
    """Cancelled before the task was known."""
    closed_at: int | None = None
    """Clock, ms: when `GroupFinished` was written."""
    cancelled_at: int | None = None
    """Clock, ms: first cancel of an unknown task; the row is deleted if the task never comes."""
    opened_at: int | None = None
    """Clock, ms: when the first of its sessions was opened (protocol 28); None for a submitted task."""


class Plan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The fields of a TaskRequest that the coordinator needs, so that decisions never parse or fetch a body."""

    pool: str
    """Empty for an opened task, which needs no workers."""
    priority: int
    max_attempts: int
    init_budget_s: float
    run_budget_s: float
    evaluate_budget_s: float
    harness: str
    builder: str
    builder_config: bytes
    """JSON object."""
    output: str | None
    """Suffix of the trajectories topic; None: the default topic."""
    mode: str
    metadata: bytes
    """JSON object, carried to the trajectory."""
    user: str = ""
    """`metadata.user`: a pool's slots are shared evenly among users."""
    usable: int | None = None
    """`early_stop.usable`: after this many usable trajectories the group's other sessions are cancelled; None: never."""
    callback_url: str | None = None
    """URL that receives GroupFinished."""
    run: str | None = None
    """As in the TaskRequest."""


def session_id_of(task_id: str, sample_index: int) -> str:
    """`<task_id>.<sample_index>`."""
    return f"{task_id}.{sample_index}"


def task_id_of(session_id: str) -> str:
    return session_id.rpartition(".")[0]
