"""Sessions and trajectories in the words of NVIDIA's Polar: `SessionResult`, `TaskStatus` and `TaskResult`.

Pure: rows and trajectories in, JSON out. A session that NVIDIA's form can't express is an ERROR that says why, so no client trains on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from polar.trainer.rows import reward_of
from topics.types.session import Phase, SessionState, Status, TaskState
from topics.types.trajectory import ExpandedTrace, Trajectory, expand

STATUSES = {
    Status.COMPLETED: "COMPLETED",
    Status.FAILED: "ERROR",
    Status.TIMED_OUT: "TIMEOUT",
    Status.CANCELLED: "ERROR",
}
PHASES = {
    Phase.UNOPENED: "REGISTERED",
    Phase.QUEUED: "REGISTERED",
    Phase.INIT: "INITIALIZING",
    Phase.READY: "READY",
    Phase.RUNNING: "RUNNING",
    Phase.RAN: "POST_RUN",
    Phase.EVALUATING: "EVALUATING",
    Phase.CLOSING: "POST_RUN",
    Phase.BUILDING: "BUILDING",
}
"""Statuses of sessions without a trajectory."""
CANCELLED = "session cancelled"
"""NVIDIA's text; it has no status for this."""
UNKNOWN_END = (
    "unknown: the log had lost this session's end when the coordinator's table was rebuilt; its result may be known"
)


def session_status(row: SessionState) -> str:
    """The status of a session's row. A rebuilt table may not know how a session ended: that is an ERROR."""
    return PHASES[row.phase] if row.phase is not Phase.ENDED else _end(row.status, row)


def _end(status: Status | None, row: SessionState) -> str:
    if status is None or (status is Status.COMPLETED and row.evaluation_error is not None):
        return "ERROR"
    return STATUSES[status]


def session_result(trajectory: Trajectory, row: SessionState) -> dict[str, Any]:
    """A `SessionResult`.

    A failed evaluation is an ERROR, as in NVIDIA's server, and so is one that gave no reward: its clients read a missing reward as 0.
    """
    status = _end(trajectory.status, row)
    error = _error(trajectory, row)
    traces, flaw = _traces(trajectory)
    if flaw is not None:
        status = "ERROR" if status == "COMPLETED" else status
        error = error or flaw
    accounting = trajectory.accounting
    metadata = trajectory.task_metadata()
    return {
        "session_id": trajectory.session_id,
        "task_id": trajectory.task_id,
        "status": status,
        "trajectory": {
            "status": status,
            "metadata": {
                "builder": trajectory.builder,
                "harness": trajectory.harness,
                "sample_index": trajectory.sample_index,
                "record_count": trajectory.stats.answered,
                "reward": trajectory.reward,
                "masked_tokens": trajectory.stats.masked_tokens,
            },
            "traces": traces,
            "error": error,
        },
        "timing": {
            "register_to_init_queue_ms": float(accounting.init_queued_ms),
            "init_ms": float(accounting.init_ms),
            "run_ms": float(accounting.run_ms),
            "postrun_ms": float(accounting.evaluate_ms),
        },
        "node_id": row.worker_id,
        "error": error,
        "metadata": metadata,
    }


def task_document(
    task_id: str, status: str, total: int, results: Sequence[msgspec.Raw], *, is_status: bool
) -> dict[str, Any]:
    """A `TaskStatus`, or a `TaskResult`, which lacks the counts. `results`: encoded `SessionResult`s by sample index."""
    counts = {"total_sessions": total, "completed_sessions": len(results)} if is_status else {}
    return {"task_id": task_id, "status": status, **counts, "results": results, "result_paths": []}


def task_summary(task: TaskState, rows: Sequence[SessionState], updated_ms: int) -> dict[str, Any]:
    """An entry of `GET /tasks`. `updated_ms`: Unix ms of the last change."""
    ended = [row for row in rows if row.phase is Phase.ENDED]
    rewards = [row.reward for row in ended if row.reward is not None]
    return {
        "task_id": task.task_id,
        "status": "running" if len(ended) < task.num_samples else "completed",
        "harness": None if task.plan is None else task.plan.harness,
        "model": model_of(task),
        "num_samples": task.num_samples,
        "completed_sessions": len(ended),
        "errored_sessions": sum(session_status(row) != "COMPLETED" for row in ended),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "mean_traces": None,
        "mean_completions": sum(row.calls for row in ended) / len(ended) if ended else None,
        "created_at": None,
        "updated_at": updated_ms / 1000,
        "source": "live",
    }


def session_summary(row: SessionState) -> dict[str, Any]:
    """An entry of `GET /tasks/<id>/sessions`."""
    found: dict[str, Any] = {"session_id": row.session_id, "task_id": row.task_id, "status": session_status(row)}
    if row.phase is Phase.ENDED:
        error = row.error or row.evaluation_error
        message = error.message if error is not None else UNKNOWN_END if row.status is None else None
        found |= {"node_id": row.worker_id, "reward": row.reward, "error": message}
    return found


def model_of(task: TaskState) -> str | None:
    """`agent.model_name` of a task whose body the row still has."""
    if not task.body:
        return None
    found: object = msgspec.json.decode(task.body)["agent"].get("model_name")
    return found if isinstance(found, str) else None


def _error(trajectory: Trajectory, row: SessionState) -> str | None:
    if trajectory.status is Status.CANCELLED:
        return CANCELLED
    if trajectory.error is not None:
        return f"{trajectory.error.stage}: {trajectory.error.message}"
    if row.evaluation_error is not None:
        return f"evaluator failed: {row.evaluation_error.message}"
    return "session execution timeout" if trajectory.status is Status.TIMED_OUT else None


def _traces(trajectory: Trajectory) -> tuple[list[dict[str, Any]], str | None]:
    """The traces that train something and share the session's reward, and why a client mustn't train them, if it mustn't."""
    found: list[dict[str, Any]] = []
    flaws: list[str] = []
    for trace in trajectory.traces:
        # A trace without the session's reward: clients would read its reward as 0.
        if not trace.trains or (trace.reward is None and trajectory.reward is not None):
            continue
        expanded = expand(trajectory, trace)
        reward, flaw = _reward(expanded)
        flaws += [] if flaw is None else [flaw]
        if expanded.media:
            flaws.append("a trace has images or sounds, which have no place here: set the builder's filter drop_media")
        if not np.isfinite(expanded.logprobs).all():
            flaws.append("a trace has logprobs that aren't finite")
            continue
        found.append(_trace(expanded, reward))
    if any(trace["reward"] is None for trace in found):
        flaws.append("the evaluator gave no reward")
    return found, flaws[0] if flaws else None


def _trace(expanded: ExpandedTrace, reward: float | None) -> dict[str, Any]:
    """A `Trace`: the response begins with the first trained token. Messages are empty; the tokens are the whole content."""
    start = int(np.argmax(expanded.loss_mask))
    versions = dict.fromkeys(span.policy_version for span in expanded.spans)
    return {
        "prompt_ids": expanded.token_ids[:start].tolist(),
        "response_ids": expanded.token_ids[start:].tolist(),
        "loss_mask": expanded.loss_mask[start:].tolist(),
        "prompt_messages": [],
        "response_messages": [],
        "tools": None,
        "finish_reason": expanded.trace.finish_reason,
        "response_logprobs": expanded.logprobs[start:].tolist(),
        "reward": reward,
        "metadata": {
            "trace_id": expanded.trace.trace_id,
            "kind": expanded.trace.kind,
            # Not `policy_version`: NVIDIA's bridge takes that name for the trainer's version at the submission.
            "sampled_by_versions": list(versions),
        },
    }


def _reward(expanded: ExpandedTrace) -> tuple[float | None, str | None]:
    """The one reward of a trace's trained tokens; the second value says why there isn't one."""
    if expanded.trace.reward is None:
        return None, None
    rewards = {reward_of(span.call, expanded.trace) for span in expanded.spans}
    if len(rewards) > 1:
        return None, "calls of one trace have different rewards, and a trace has one: build with per_request"
    return rewards.pop(), None
