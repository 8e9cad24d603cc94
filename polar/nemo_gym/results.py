"""A trajectory as a result of NeMo Gym. It is the exporter's result, or a masked one that neither scores nor training count.

Protocol: `BaseVerifyResponse` of nemo-gym 0.7.0 (`nemo_gym/base_resources_server.py`) and its `failure_kinds.py`. NeMo RL at 7ea279ab reads
`instance_config.mask_sample`, as the package's own `judge_failsafe` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polar.trainer.exporters.nemo import results
from polar.trainer.exporters.segments import Branches
from polar.trainer.groups import Group
from topics.types.errors import InputError, Kind
from topics.types.session import Status
from topics.types.trajectory import Trajectory

VERIFIER = "verifier_error"
KINDS = {
    Status.COMPLETED: VERIFIER,
    Status.FAILED: "agent_run_error",
    Status.TIMED_OUT: "agent_timeout",
    Status.CANCELLED: "cancelled",
}
"""Kinds of failures. A completed session fails by having no reward."""
UNTRAINABLE = "polar:untrainable"
"""A kind of our own, in the package's form for such: a reward, and no tokens that can be trained as one result."""
SESSION = "polar_session_id"
STATUS = "polar_status"
MASK = "mask_sample"
OUTCOME = (MASK, "failure_kind", "failure_reason")
"""Fields of a result that only some results have."""


def result(row: Mapping[str, Any], trajectory: Trajectory, branches: Branches) -> dict[str, Any]:
    """The row with its response and reward. What an earlier result said of it is left out.

    A session without a reward, without trained tokens, or that the exporter refuses, such as one that branched, has a masked result: its
    reward is 0, and `mask_sample` says that this isn't a measurement.
    """
    row = _without_outcome(row)
    named = {SESSION: trajectory.session_id, STATUS: trajectory.status.value}
    failure = _failure(trajectory)
    reason = "has no reward" if trajectory.reward is None else "has no tokens that can be trained"
    try:
        found = results(Group(trajectory.task_id, [trajectory]), task_index=0, branches=branches)
    except InputError as error:
        found, reason = [], str(error)
    if found:
        return {**row, **named, **failure, "response": found[0]["response"], "reward": found[0]["reward"]}
    kind = _kind(trajectory) if trajectory.reward is None else UNTRAINABLE
    own = {"failure_kind": kind, "failure_reason": f"{trajectory.session_id}: {reason}"}
    return {**row, **named, "response": empty_response(trajectory.session_id)} | _masked(row, own | failure)


def overdue(row: Mapping[str, Any], session_id: str, reason: str) -> dict[str, Any]:
    """The row with a masked result, since its session was too late."""
    failure = {"failure_kind": KINDS[Status.TIMED_OUT], "failure_reason": reason}
    row = _without_outcome(row)
    return {**row, SESSION: session_id, "response": empty_response(session_id)} | _masked(row, failure)


def empty_response(session_id: str) -> dict[str, Any]:
    """A response without output, with what the package's type requires."""
    return {
        "id": session_id,
        "object": "response",
        "created_at": 0,
        "model": "",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _without_outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in row.items() if name not in OUTCOME}
    if isinstance(config := row.get("instance_config"), Mapping):
        kept["instance_config"] = {name: value for name, value in config.items() if name != MASK}
    return kept


def _masked(row: Mapping[str, Any], failure: Mapping[str, str]) -> dict[str, Any]:
    config = row.get("instance_config")
    instance = {**(config if isinstance(config, Mapping) else {}), MASK: True}
    return {"reward": 0.0, MASK: True, "instance_config": instance, **failure}


def _failure(trajectory: Trajectory) -> dict[str, str]:
    """Kind and reason of a session that didn't complete: one with a reward counts, and still names them."""
    if trajectory.status is Status.COMPLETED:
        return {}
    message = trajectory.status.value if trajectory.error is None else trajectory.error.message
    return {"failure_kind": _kind(trajectory), "failure_reason": f"{trajectory.session_id}: {message}"}


def _kind(trajectory: Trajectory) -> str:
    """A failed evaluation fails its session, whatever the agent did."""
    if trajectory.error is not None and trajectory.error.kind is Kind.EVALUATION:
        return VERIFIER
    return KINDS[trajectory.status]
