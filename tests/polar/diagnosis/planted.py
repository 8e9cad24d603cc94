"""For each cause, facts that have it and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analytics.health import Flag
from consumers.building.outcome import NO_CALL
from polar.diagnosis.causes import Cause
from polar.diagnosis.facts import Calls, Facts, Slots, System
from topics.dead_letters import Letter
from topics.types.completion import CallError
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, Plan, SessionState, Stage, Status, TaskState

PLAN = Plan("default", 0, 2, 60.0, 60.0, 60.0, "pi", "prefix_merging", b"{}", None, "train", b"{}")
TASK = TaskState("t", 2, "hash", plan=PLAN)
OPENED = TaskState("t", 2, "", plan=PLAN, opened_at=0)
ALIVE = {"fanout": 1, "coordinator": 1, "worker": 1, "proxy": 1, "builder": 1}
FREE = {(stage, "default"): Slots(2, 1) for stage in Stage}
WELL = System(processes=ALIVE, slots=FREE)
KILLED = SessionError("run", Kind.INFRA, "lost", "its worker is gone", retryable=True)
BUSY = Slots(2, 0)


def letter(topic: str, reason: str = "no such harness; there are: pi") -> Letter:
    return Letter(17, 0, b"t", b"{}", reason, "agent.harness", "fanout", f"polar.{topic}", 0, 3)


def session(phase: Phase, *, task: TaskState = TASK, system: System = WELL, **more: Any) -> Facts:
    """Facts on session `t.0` in this phase; `more` are fields of its row."""
    return Facts("t.0", system, task, SessionState("t.0", "t", 0, phase, 0, **more))


def unknown(**changes: Any) -> Facts:
    return Facts("t", replace(WELL, **changes))


def running(code: str, message: str = "it said no") -> Facts:
    """A session whose last call failed."""
    return replace(session(Phase.RUNNING, worker_id="w"), calls=Calls(3, CallError(code, message)))


def failed(code: str, message: str = "something happened", *, stage: str = "run") -> Facts:
    """A session that failed with this `<kind>/<code>`."""
    kind, _, name = code.partition("/")
    error = SessionError(stage, Kind(kind), name, message)
    return session(Phase.ENDED, status=Status.FAILED, error=error)


def completed(*flags: Flag, reward: float | None = 1.0, calls: int = 3, tokens: int = 9, **more: Any) -> Facts:
    row: dict[str, Any] = {"status": Status.COMPLETED, "reward": reward, "calls": calls, "trainable_tokens": tokens}
    return replace(session(Phase.ENDED, **row, **more), flags=flags)


def without(role: str) -> System:
    return replace(WELL, processes={name: count for name, count in ALIVE.items() if name != role})


PLANTED = {
    Cause.KAFKA_AWAY: Facts("t", System(kafka="Kafka at 127.0.0.1:9 doesn't answer")),
    Cause.REFUSED: replace(unknown(), letters=[letter("tasks")]),
    Cause.NO_FANOUT: replace(unknown(), system=without("fanout")),
    Cause.NO_COORDINATOR: session(Phase.QUEUED, system=without("coordinator")),
    Cause.OBSTACLE: unknown(obstacles=["host: new tasks wait: the disk is full"]),
    Cause.CANCELLED_BEFORE: replace(unknown(), task=TaskState("t", cancelled=True)),
    Cause.UNKNOWN: unknown(),
    Cause.SUBMITTED: replace(unknown(), task=TASK),
    Cause.DEAD_LETTER: replace(completed(), letters=[letter("webhooks", "the host isn't allowed")]),
    Cause.NO_WORKERS: session(Phase.READY, system=replace(WELL, slots={})),
    Cause.DRAINING: session(Phase.READY, system=replace(WELL, is_draining=True)),
    Cause.SLOTS_BUSY: session(Phase.RAN, system=replace(WELL, slots=FREE | {(Stage.EVALUATE, "default"): BUSY})),
    Cause.RUN_SLOTS_BUSY: session(Phase.QUEUED, system=replace(WELL, slots=FREE | {(Stage.RUN, "default"): BUSY})),
    Cause.PAUSED: session(Phase.RUNNING, system=replace(WELL, is_paused=True)),
    Cause.NO_BUILDER: session(Phase.BUILDING, system=without("builder")),
    Cause.ATTEMPT_FAILED: replace(session(Phase.QUEUED, attempt=2), attempt_error=KILLED),
    Cause.ATTEMPT_LOST: session(Phase.QUEUED, attempt=2),
    Cause.UNOPENED: session(Phase.UNOPENED, task=OPENED),
    Cause.NEXT: session(Phase.QUEUED),
    Cause.AGENT_WORKS: session(Phase.RUNNING, task=OPENED),
    Cause.WORKS: session(Phase.EVALUATING, worker_id="w"),
    Cause.CLOSING: session(Phase.CLOSING),
    Cause.BUILDING: session(Phase.BUILDING),
    Cause.NO_PROXY: session(Phase.RUNNING, system=without("proxy")),
    Cause.PROXY_NOT_READY: session(Phase.RUNNING, system=replace(WELL, proxy="Kafka doesn't acknowledge heartbeats")),
    Cause.ENGINE_DOWN: session(Phase.RUNNING, system=replace(WELL, engines_down=["default"])),
    Cause.ENGINE_FAILS: running("unreachable"),
    Cause.NO_TOOL_PARSER: running("refused", "requires --enable-auto-tool-choice and --tool-call-parser to be set"),
    Cause.ANSWER_UNUSABLE: running("no_token_ids"),
    Cause.CALL_REFUSED: running("context_length"),
    Cause.CALL_FAILED: running("proxy_fault", "KeyError"),
    Cause.REQUESTS_REFUSED: replace(
        session(Phase.RUNNING), calls=Calls(refused=4, refusal="POST /v2/chat: no such path")
    ),
    Cause.CANCELLED: session(Phase.ENDED, status=Status.CANCELLED),
    Cause.EARLY_STOP: failed("budget/early_stop", stage="queue"),
    Cause.NEVER_OPENED: failed("input/unopened", stage="queue"),
    Cause.NO_WORKER_IN_TIME: failed("infra/no_worker", stage="queue"),
    Cause.OUT_OF_TIME: failed("budget/timeout"),
    Cause.WORKER_LOST: failed("infra/lost"),
    Cause.WORKER_HUNG: failed("infra/deadline"),
    Cause.KEY_REFUSED: failed(
        "infra/model_failed", "the harness's last model call failed (key_refused): the proxy refuses"
    ),
    Cause.MODEL_FAILED: failed("infra/model_failed", "the harness's last model call failed (unreachable): no server"),
    Cause.HARNESS_FAILED: failed("agent/exit_code"),
    Cause.LIMIT_EXCEEDED: failed("agent/limit_exceeded"),
    Cause.PLUG_IN_MISSING: failed("input/bad_input", "evaluator: can't be imported here: No module named 'mine'"),
    Cause.BAD_INPUT: failed("input/bad_input", "runtime.prepare.0.target: leaves the sandbox"),
    Cause.NOT_READY: failed("infra/not_ready", "npm can't reach its registry"),
    Cause.WORKER_ERROR: failed("infra/worker_error"),
    Cause.INIT_OUT_OF_TIME: failed("infra/timeout", stage="init"),
    Cause.SANDBOX_NOT_STARTED: failed("infra/not_made", stage="init"),
    Cause.IMAGE_UNAVAILABLE: failed("infra/image_unavailable", stage="init"),
    Cause.HOST_DISK_FULL: failed("infra/host_disk_full", stage="init"),
    Cause.HOST_OUT_OF_MEMORY: failed("infra/host_out_of_memory"),
    Cause.SANDBOX_FULL: failed("infra/storage_exceeded", stage="init"),
    Cause.PREPARE_FAILED: failed("infra/prepare_failed", stage="init"),
    Cause.UNHEALTHY: failed("infra/unhealthy", stage="init"),
    Cause.SANDBOX_LOST: failed("infra/runtime_gone"),
    Cause.EVALUATOR_RAISED: failed("evaluation/evaluator_raised", stage="evaluate"),
    Cause.NO_REWARD_FOUND: failed("evaluation/no_reward_file", stage="evaluate"),
    Cause.JUDGE_FAILED: failed("infra/judge_unreachable", stage="evaluate"),
    Cause.EVALUATION_OUT_OF_TIME: failed("evaluation/timeout", stage="evaluate"),
    Cause.EVALUATION_FAILED: failed("evaluation/mine_own", stage="evaluate"),
    Cause.CALLS_LOST: failed("infra/log_gap", stage="build"),
    Cause.TABLE_LOST: failed("infra/table_lost"),
    Cause.TOO_LARGE: failed("agent/too_large", stage="build"),
    Cause.BUILDER_FAILED: failed("infra/builder", stage="build"),
    Cause.FAILED: failed("infra/mine_own"),
    Cause.CLOSED_WITHOUT_CALL: completed(reward=None, calls=0, tokens=0, reward_reason=NO_CALL),
    Cause.NO_CALLS: completed(calls=0, tokens=0),
    Cause.REWARD_NULL: completed(reward=None),
    Cause.NOTHING_TRAINED: completed(tokens=0),
    Cause.RAW_LOGPROBS: replace(completed(), calls=Calls(3, raw=2)),
    Cause.OLD_POLICY: replace(completed(), calls=Calls(3, policy_version=4), system=replace(WELL, policy_version=9)),
    Cause.CALL_MISSING: completed(Flag.CALL_MISSING),
    Cause.ANSWER_CUT: completed(Flag.ANSWER_CUT),
    Cause.AFTER_CLOSE: completed(Flag.AFTER_CLOSE),
    Cause.NO_LOGPROBS: completed(Flag.NO_LOGPROBS),
    Cause.REPLAYED: completed(Flag.REPLAYED),
    Cause.TRUNCATED_SAMPLING: completed(Flag.TRUNCATED_SAMPLING),
    Cause.FORKED: completed(Flag.FORKED),
    Cause.ABANDONED: completed(Flag.ABANDONED),
    Cause.MOSTLY_MASKED: completed(Flag.MOSTLY_MASKED),
    Cause.VERSION_UNKNOWN: completed(Flag.VERSION_UNKNOWN),
    Cause.CALLS_UNREAD: replace(completed(), flags=None),
    Cause.COMPLETED: completed(),
}
