"""TRL's rollout dictionary (`rollout_func` of `trl/trainer/grpo_trainer.py`) and `RolloutSample` of its asynchronous GRPO
(`trl/experimental/async_grpo/async_rollout_worker.py`; huggingface/trl at f2cd57710, 1.10.0.dev0, July 2026).

TRL requires: `prompt_ids`, `completion_ids` and `logprobs` with one entry per completion and `num_generations` completions per prompt, in
the order of the prompts; `env_mask` is 1 on the model's tokens. Other lists are passed to the reward functions; a reward of None keeps a
completion out of the baseline. A completion is one linear row. The asynchronous trainer accepts several rows per conversation, with
computed advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from polar.trainer.advantages import advantages
from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.segments import Segment, rewarded, segments
from polar.trainer.groups import Group
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory


class RolloutSample(msgspec.Struct, frozen=True):
    """TRL's type. It uses `prompt` and `completion`, which are messages, for its log only."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    input_ids: list[int]
    completion_mask: list[int]
    """1 where trained; as long as `input_ids`."""
    old_log_probs: list[float]
    advantage: float
    model_version: int
    """The oldest version that sampled its tokens; -1: unknown for some token."""
    group_id: int
    metrics: dict[str, float]


def rollouts(
    groups: Sequence[Group], *, num_generations: int, branches: Literal["refuse", "longest"] = "refuse"
) -> dict[str, list[Any]]:
    """The result of `rollout_func` for the prompts of these groups; pass a reward function that returns `reward`.

    A session without a reward keeps its slot, with reward None. A session without trained tokens keeps its slot with the prompt and the
    masked first token of another session. `branches`: refuse a session with several traces, or train only its longest trace.
    Raises InputError for a refused session, a group of another size, and a group with no trained tokens.
    """
    require_alike(trajectory for group in groups for trajectory in group.trajectories)
    found: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "session_id")
    }
    for group in groups:
        if len(group.trajectories) != num_generations:
            reason = f"{group.task_id} has {len(group.trajectories)} samples; TRL takes whole groups of one size"
            raise InputError("num_generations", num_generations, reason)
        rows = [_only(trajectory, branches) for trajectory in group.trajectories]
        other = next((row for row in rows if row is not None), None)
        if other is None:
            raise InputError("groups", group.task_id, "has no tokens to train; leave it out")
        for trajectory, row in zip(group.trajectories, rows, strict=True):
            found["prompt_ids"].append((row or other).prompt_ids)
            found["completion_ids"].append(row.response_ids if row else other.response_ids[:1])
            found["logprobs"].append(row.response_logprobs if row else [0.0])
            found["env_mask"].append(row.response_mask if row else [0])
            found["reward"].append(trajectory.reward)
            found["session_id"].append(trajectory.session_id)
    return found


def rollout_samples(group: Group, *, group_id: int) -> list[RolloutSample]:
    """One row per trace with its session's advantage, in population standard deviations as in TRL. Rewards of calls are ignored."""
    require_alike(group.trajectories)
    by_session = dict(zip([one.session_id for one in group.trajectories], advantages(group.rewards), strict=True))
    return [
        _sample(segment, by_session[trajectory.session_id], group_id)
        for trajectory, rows in rewarded(group)
        for segment in rows
    ]


def _sample(segment: Segment, advantage: float | None, group_id: int) -> RolloutSample:
    assert advantage is not None, "its session has a reward"
    expanded = segment.expanded
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=expanded.token_ids.tolist(),
        completion_mask=expanded.loss_mask.tolist(),
        old_log_probs=expanded.logprobs.tolist(),
        advantage=advantage,
        model_version=min(segment.known_versions or [-1]),
        group_id=group_id,
        metrics={"reward": segment.reward},
    )


def _only(trajectory: Trajectory, branches: Literal["refuse", "longest"]) -> Segment | None:
    """The session's only or longest row, with or without a reward; None without trained tokens."""
    rows = segments(trajectory)
    if len(rows) > 1 and branches == "refuse":
        reason = f"has {len(rows)} traces, TRL takes one: pass branches='longest', or use rollout_samples"
        raise InputError("groups", trajectory.session_id, reason)
    return rows[-1] if rows else None
