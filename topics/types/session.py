"""A session's and a task's state, as the coordinator's table keeps them (`polar.sessions`).

Frozen: a transition makes a new value. Times are `clock` milliseconds: log time of the partition, which stands still while
Kafka is away (protocol 12), never a host's clock.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from topics.types.errors import SessionError


class Stage(StrEnum):
    """The three stages that workers do."""

    INIT = "init"
    RUN = "run"
    EVALUATE = "evaluate"


class Phase(StrEnum):
    """Where a session stands. Three wait for a slot, three are in a worker's hand."""

    UNOPENED = "unopened"
    """A sample of an opened task that nobody has asked for yet (protocol 28)."""
    QUEUED = "queued"
    """Waits for an init slot."""
    INIT = "init"
    """An init claim is granted."""
    READY = "ready"
    """Its runtime is made; waits for a run slot."""
    RUNNING = "running"
    """A run claim is granted; or the session is opened, and someone's own agent works."""
    RAN = "ran"
    """Its harness has ended; waits for an evaluate slot."""
    EVALUATING = "evaluating"
    """An evaluate claim is granted."""
    CLOSING = "closing"
    """Its key is closed, its harness perhaps alive: `Build` follows when it is dead, or after 2 s (protocol 17)."""
    BUILDING = "building"
    """`Build` is on the log; waits for the builder."""
    ENDED = "ended"
    """Its trajectory is out."""


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
    """Where a session's time went, for its last attempt, in milliseconds of log time (`*_queued_ms`) or of the worker."""

    init_queued_ms: int = 0
    init_ms: int = 0
    run_queued_ms: int = 0
    run_ms: int = 0
    evaluate_queued_ms: int = 0
    evaluate_ms: int = 0
    attempts_lost: int = 0


class SessionState(msgspec.Struct, frozen=True, gc=False, tag="session", omit_defaults=True):
    """One row of the table; key `session:<id>`. Written by the coordinator that owns its partition alone.

    Without the collector, as are tasks' rows: they hold no cycles, and a coordinator keeps a hundred thousand of them.
    """

    session_id: str
    task_id: str
    sample_index: int
    phase: Phase
    since: int
    """Clock, ms: when this phase began."""
    attempt: int = 1
    spent: int = 0
    """Attempts that a granted claim has cost; the session fails when this reaches `max_attempts`."""
    ticket_released_at: int | None = msgspec.field(default=None, name="lent_at")
    """Waiting phases: clock of the newest ticket's release; None: it wants a slot."""
    releases: int = 0
    """Tickets released for this stage of this attempt; a claim counts only where one was."""
    claim_id: str | None = None
    """Phases in hand, and CLOSING: the granted claim."""
    worker_id: str | None = None
    runtime: dict[str, str] | None = None
    """What the init worker made, for the other stages to attach to; None again where its worker removes it."""
    init_claim_id: str | None = None
    """The claim that made `runtime`, which bears it as a label."""
    run_claim_id: str | None = None
    """The claim whose calls the trajectory holds; None until a run was granted in this attempt."""
    past_claims: list[str] = []
    """Run claims of earlier attempts: their keys stay closed, and a new owner says so again."""
    revoked_claims: list[str] = []
    """Init and evaluate claims that were taken back: until the session has ended, a new owner says so again."""
    log_offset: int | None = None
    """Offset of this attempt's `Open` in `polar.completions`."""
    status: Status | None = None
    """Set when the run has ended, however it ended."""
    exit_code: int | None = None
    error: SessionError | None = None
    reward: float | None = None
    call_rewards: dict[str, float] | None = None
    """Reward by call id, where the evaluator gives such."""
    artifacts: dict[str, str] | None = None
    """Name to blob reference or path: agent log, evaluation output."""
    evaluations_lost: int = 0
    accounting: Accounting = Accounting()
    ttl_ms: int | None = None
    """Of an opened session, clock: from its Grant to its end. None: never opened, or run by workers."""
    calls: int = 0
    """Captured for its trajectory, once that is out."""
    trainable_tokens: int = 0
    paused_ms: int = 0
    """The partition's pauses so far, in all, when its run began: they don't count against the run's deadline (protocol 18)."""


class TaskState(msgspec.Struct, frozen=True, gc=False, tag="task", omit_defaults=True):
    """One task of the table; key `task:<id>`. A task that was cancelled before it was known has no body yet."""

    task_id: str
    num_samples: int = 0
    body_hash: str | None = None
    """sha256 of the canonical body, empty for an opened task, which has none; None until the task is known."""
    body: bytes | None = None
    """The TaskRequest as canonical JSON, where it is small."""
    body_ref: str | None = None
    """Its blob reference, where it is not."""
    plan: Plan | None = None
    ended: int = 0
    """Sessions whose trajectory is out."""
    usable: int = 0
    """Of these, those that a trainer can use: a reward, and tokens to train."""
    cancelled: bool = False
    cancelled_sessions: list[str] = []
    """Cancelled before the task was known."""
    closed_at: int | None = None
    """Clock, ms: when `GroupFinished` was out."""
    cancelled_at: int | None = None
    """Clock, ms: when the first cancel came of a task that wasn't known; where it never is, this is forgotten."""
    opened_at: int | None = None
    """Clock, ms: when the first of its sessions was opened (protocol 28); None for a submitted task."""


class Plan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the coordinator needs of a TaskRequest, so that deciding never parses or fetches a body."""

    pool: str
    """Empty for an opened task, which no worker has a part in."""
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
    """Name of the trajectories topic's suffix; None: the default topic."""
    mode: str
    metadata: bytes
    """JSON object, carried to the trajectory."""
    user: str = ""
    """`metadata.user`: slots of a pool are shared out evenly among users."""
    usable: int | None = None
    """`early_stop.usable`: with so many usable trajectories of its group the other sessions are cancelled; None: never."""
    callback_url: str | None = None
    """Where GroupFinished is told."""


def session_id_of(task_id: str, sample_index: int) -> str:
    """`<task_id>.<sample_index>`."""
    return f"{task_id}.{sample_index}"


def task_id_of(session_id: str) -> str:
    """The task of a session id."""
    return session_id.rpartition(".")[0]
