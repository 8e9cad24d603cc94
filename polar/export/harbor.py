"""Sessions as a Harbor job, in the files that `harbor view` reads (checked with Harbor 0.24).

Pure. A session is a trial, an export is a job. A trial's times are counted from its first model call, whose instant Polar knows, with the
durations of the stages; a session without calls has no times.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import msgspec

from polar.export.json_values import Json, instant
from topics.types.session import Status
from topics.types.trajectory import Call, Trajectory

ADHOC = "adhoc"
"""Harbor's name for the data set of trials that name none."""
TRIAL_URI = "polar:"
"""Begins the URI of every trial of an export, and of no other."""
CANCELLED = "CancelledError"
"""The exception by which Harbor counts cancelled trials."""
NEVER = instant(0)


def job_id(job: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"polar:{job}"))


def trial_config(trajectory: Trajectory, job: str) -> Json:
    """A trial's config.json."""
    task = {"path": f"tasks/{trajectory.task_id}", "source": trajectory.run}
    return {
        "task": task,
        "trial_name": trajectory.session_id,
        "agent": {"name": trajectory.harness, "model_name": _model(trajectory.calls)},
        "job_id": job_id(job),
    }


def trial_result(trajectory: Trajectory, job: str) -> Json:
    """A trial's result.json."""
    model, times = _model(trajectory.calls), _times(trajectory)
    metadata = {
        "status": trajectory.status,
        "attempt": trajectory.attempt,
        "reward_reason": trajectory.reward_reason,
        "label": trajectory.label,
        "artifacts": trajectory.artifacts,
        "stats": trajectory.stats,
        "task": trajectory.task_metadata(),
    }
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"polar:{job}/{trajectory.session_id}")),
        "task_name": trajectory.task_id,
        "trial_name": trajectory.session_id,
        "trial_uri": f"{TRIAL_URI}{trajectory.session_id}",
        "task_id": {"path": f"tasks/{trajectory.task_id}"},
        "source": trajectory.run,
        "task_checksum": "",
        "config": trial_config(trajectory, job),
        "agent_info": {
            "name": trajectory.harness,
            "version": next((call.client for call in trajectory.calls if call.client), "unknown"),
            "model_info": None if model is None else {"name": model},
        },
        "agent_result": {
            "n_input_tokens": sum(call.prompt_tokens for call in trajectory.calls),
            "n_output_tokens": sum(call.sampled_tokens for call in trajectory.calls),
            "metadata": msgspec.to_builtins(metadata),
        },
        "verifier_result": None if trajectory.reward is None else {"rewards": {"reward": trajectory.reward}},
        "exception_info": _exception(trajectory, times.get("finished_at")),
        **times,
    }


def job_config(job: str, results: Iterable[Json]) -> Json:
    """A job's config.json, of its trials' results."""
    agents: set[tuple[str, str | None]] = set()
    runs: set[str] = set()
    for result in results:
        agents.add((result["agent_info"]["name"], result["config"]["agent"]["model_name"]))
        if result["source"] is not None:
            runs.add(result["source"])
    return {
        "job_name": job,
        "agents": [{"name": name, "model_name": model} for name, model in sorted(agents, key=str)],
        "datasets": [{"path": f"tasks/{run}"} for run in sorted(runs)],
    }


def job_result(job: str, results: Sequence[Json]) -> Json:
    """A job's result.json, of its trials' results in the order of their names."""
    stats: Json = {
        "n_completed_trials": len(results),
        "n_errored_trials": 0,
        "n_cancelled_trials": 0,
        "n_input_tokens": 0,
        "n_output_tokens": 0,
        "evals": {},
    }
    for result in results:
        error = result["exception_info"]
        stats["n_errored_trials"] += error is not None
        stats["n_cancelled_trials"] += error is not None and error["exception_type"] == CANCELLED
        stats["n_input_tokens"] += result["agent_result"]["n_input_tokens"]
        stats["n_output_tokens"] += result["agent_result"]["n_output_tokens"]
        _count(stats["evals"].setdefault(_eval_name(result), _no_trials()), result)
    for one in stats["evals"].values():
        rewards = [float(reward) for reward, names in one["reward_stats"]["reward"].items() for _ in names]
        one["metrics"] = [{"mean": sum(rewards) / len(rewards)}] if rewards else []
    began = [result["started_at"] for result in results if "started_at" in result]
    ended = [result["finished_at"] for result in results if "finished_at" in result]
    return {
        "id": job_id(job),
        "started_at": min(began, default=NEVER),
        "finished_at": max(ended, default=NEVER),
        "n_total_trials": len(results),
        "stats": stats,
    }


def _eval_name(result: Json) -> str:
    """As Harbor joins agent, model and data set."""
    model = result["agent_info"]["model_info"]
    names = [result["agent_info"]["name"], *([] if model is None else [model["name"]]), result["source"] or ADHOC]
    return "__".join(names)


def _no_trials() -> Json:
    return {"n_trials": 0, "n_errors": 0, "reward_stats": {"reward": {}}, "exception_stats": {}}


def _count(one: Json, result: Json) -> None:
    """Add a trial to the figures of its agent, model and data set."""
    if result["verifier_result"] is not None:
        one["n_trials"] += 1
        reward = str(result["verifier_result"]["rewards"]["reward"])
        one["reward_stats"]["reward"].setdefault(reward, []).append(result["trial_name"])
    if result["exception_info"] is not None:
        one["n_errors"] += 1
        kind = result["exception_info"]["exception_type"]
        one["exception_stats"].setdefault(kind, []).append(result["trial_name"])


def _model(calls: Iterable[Call]) -> str | None:
    """The first model that answered; None: none is known."""
    return next((call.model_served for call in calls if call.model_served), None)


def _exception(trajectory: Trajectory, ended: str | None) -> Json | None:
    """The trial's error in Harbor's form; None for a completed session."""
    if trajectory.status is Status.COMPLETED:
        return None
    error = trajectory.error
    kind = trajectory.status.value if error is None else error.code
    return {
        "exception_type": CANCELLED if trajectory.status is Status.CANCELLED else kind,
        "exception_message": trajectory.status.value if error is None else f"{error.stage}: {error.message}",
        "exception_traceback": "",
        "occurred_at": ended or NEVER,
    }


def _times(trajectory: Trajectory) -> Json:
    if not trajectory.calls:
        return {}
    accounting = trajectory.accounting
    first = min(call.received_at for call in trajectory.calls)
    last = max(call.completed_at for call in trajectory.calls)
    prepared = first - accounting.init_ms
    answered = first + max(accounting.run_ms, last - first)
    evaluated = answered + accounting.evaluate_ms
    return {
        "started_at": instant(prepared),
        "finished_at": instant(evaluated),
        "environment_setup": {"started_at": instant(prepared), "finished_at": instant(first)},
        "agent_execution": {"started_at": instant(first), "finished_at": instant(answered)},
        "verifier": {"started_at": instant(answered), "finished_at": instant(evaluated)},
    }
