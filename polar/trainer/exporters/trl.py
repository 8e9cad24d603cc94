"""TRL's rollout dictionary (`rollout_func` of `trl/trainer/grpo_trainer.py`) and `RolloutSample` of its asynchronous GRPO
(`trl/experimental/async_grpo/async_rollout_worker.py`; huggingface/trl at f2cd57710, 1.10.0.dev0, July 2026).

What TRL asks: `prompt_ids`, `completion_ids`, `logprobs`, one entry a completion, and `num_generations` of them a prompt, in the order
of the prompts; `env_mask` is 1 on the model's tokens; other lists go to the reward functions, of which one that answers None keeps a
completion out of the baseline. A completion is one linear row. The asynchronous trainer takes several rows of one conversation,
with advantages that are computed already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from polar.trainer.advantages import advantages
from polar.trainer.exporters.segments import Segment, rewarded, segments
from polar.trainer.groups import Group
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory


class RolloutSample(msgspec.Struct, frozen=True):
    """As TRL's; its prompt and completion are messages for its log alone."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    input_ids: list[int]
    completion_mask: list[int]
    """1 where trained, as long as the ids."""
    old_log_probs: list[float]
    advantage: float
    model_version: int
    """The oldest that sampled it; -1: nobody knows that of all its tokens."""
    group_id: int
    metrics: dict[str, float]


def rollouts(
    groups: Sequence[Group], *, num_generations: int, branches: Literal["refuse", "longest"] = "refuse"
) -> dict[str, list[Any]]:
    """What `rollout_func` returns for the prompts of these groups; `reward` goes to a reward function that hands it back.

    A session without a reward keeps its slot, with reward None, and so does one without tokens to train: another's prompt and first
    token, masked, stand there. `branches`: a session with several traces to train is refused, or its longest trace stands for it and
    the rest isn't trained. Raises InputError for that, for a group of another size, and for one that has nothing to train.
    """
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
            raise InputError("groups", group.task_id, "has nothing to train; leave it out")
        for trajectory, row in zip(group.trajectories, rows, strict=True):
            found["prompt_ids"].append((row or other).prompt_ids)
            found["completion_ids"].append(row.response_ids if row else other.response_ids[:1])
            found["logprobs"].append(row.response_logprobs if row else [0.0])
            found["env_mask"].append(row.response_mask if row else [0])
            found["reward"].append(trajectory.reward)
            found["session_id"].append(trajectory.session_id)
    return found


def rollout_samples(group: Group, *, group_id: int) -> list[RolloutSample]:
    """A row a trace, each with its session's advantage, in (population) standard deviations as TRL has it. Calls' rewards don't count."""
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
    """The row that stands for the session, reward or not; None where it has nothing to train."""
    rows = segments(trajectory)
    if len(rows) > 1 and branches == "refuse":
        reason = f"has {len(rows)} traces, TRL takes one: say branches='longest', or use rollout_samples"
        raise InputError("groups", trajectory.session_id, reason)
    return rows[-1] if rows else None
