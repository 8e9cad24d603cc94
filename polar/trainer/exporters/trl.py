"""TRL's rollout dictionary (`rollout_func` of `trl/trainer/grpo_trainer.py`) and `RolloutSample` of its asynchronous GRPO
(`trl/experimental/async_grpo/async_rollout_worker.py`; trl 1.16.0).

TRL requires: `prompt_ids`, `completion_ids` and `logprobs` with one entry per completion and `num_generations` completions per prompt, in
the order of the prompts; `env_mask` is 1 on the model's tokens. Other lists are passed to the reward functions; a reward of None keeps a
completion out of the baseline. A completion is one linear row. The asynchronous trainer accepts several rows per conversation, with
computed advantages. Both take one number for all tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.segments import Branches, Segment, one_reward, only, rewarded
from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory

OTHER_ROWS = "use the rows of polar.trainer.grpo, which have an advantage per token"
"""Advice to the caller, for calls with different rewards."""
FILLER = 0
"""A token id that every vocabulary has."""


class RolloutSample(msgspec.Struct, frozen=True, eq=False):
    """TRL's type. It uses `prompt` and `completion`, which are messages, for its log only."""

    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]
    input_ids: NDArray[np.int64]
    """int64 [n]"""
    completion_mask: NDArray[np.int64]
    """int64 [n], 1 where trained"""
    old_log_probs: NDArray[np.float32]
    """float32 [n], 0.0 where not trained"""
    advantage: float
    model_version: int
    """The oldest version that sampled its tokens; -1: unknown for some token."""
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float | None = None
    """Unix seconds; TRL's own worker sets it for its metrics."""


def rollouts(
    groups: Sequence[Group], *, num_generations: int, branches: Branches = "refuse", fill: bool = False
) -> dict[str, list[Any]]:
    """The result of `rollout_func` for the prompts of these groups; pass a reward function that returns `reward`.

    A session without a reward keeps its slot, with reward None. A session without trained tokens keeps its slot with the prompt and the
    masked first token of another session. `branches`: refuse a session with several traces, or train only its longest trace. `fill`:
    missing samples, and groups without trained tokens, also keep their slots, with the token `FILLER` as prompt and as masked completion.
    Raises InputError for a refused session, a row whose calls have different rewards and, without `fill`, for a group of another size and
    a group with no trained tokens.
    """
    require_alike(trajectory for group in groups for trajectory in group.trajectories)
    found: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "session_id")
    }
    for group in groups:
        if len(group.trajectories) != num_generations and not fill:
            reason = f"{group.task_id} has {len(group.trajectories)} samples; TRL takes whole groups of one size"
            raise InputError("num_generations", num_generations, reason)
        samples: list[Trajectory | None] = [*group.trajectories]
        if fill:
            by_index = {trajectory.sample_index: trajectory for trajectory in group.trajectories}
            samples = [by_index.get(index) for index in range(num_generations)]
        rows = [None if one is None else only(one, branches, "use rollout_samples") for one in samples]
        other = next((row for row in rows if row is not None), None)
        if other is None and not fill:
            raise InputError("groups", group.task_id, "has no tokens to train; leave it out")
        prompt, completion = (other.prompt_ids, other.response_ids[:1]) if other else ([FILLER], [FILLER])
        for index, (trajectory, row) in enumerate(zip(samples, rows, strict=True)):
            found["prompt_ids"].append(row.prompt_ids if row else prompt)
            found["completion_ids"].append(row.response_ids if row else completion)
            found["logprobs"].append(row.response_logprobs if row else [0.0])
            found["env_mask"].append(row.response_mask if row else [0])
            reward = None if trajectory is None else trajectory.reward
            if trajectory is not None and row is not None and reward is not None:
                reward = one_reward(trajectory, [row], OTHER_ROWS)
            found["reward"].append(reward)
            session_id = f"{group.task_id}.{index}" if trajectory is None else trajectory.session_id
            found["session_id"].append(session_id)
    return found


def rollout_samples(group: Group, *, group_id: int) -> list[RolloutSample]:
    """One row per trace with its session's advantage, or with that of its calls if they have a reward of their own, in population standard
    deviations as in TRL. Raises InputError for a row whose calls have different rewards.
    """
    require_alike(group.trajectories)
    advantages = {(row.session_id, row.trace): row.advantages for row in grpo(group)}
    return [
        _sample(trajectory, segment, advantages[trajectory.session_id, segment.index], group_id)
        for trajectory, rows in rewarded(group)
        for segment in rows
    ]


def _sample(trajectory: Trajectory, segment: Segment, advantages: NDArray[np.float32], group_id: int) -> RolloutSample:
    reward, expanded = one_reward(trajectory, [segment], OTHER_ROWS), segment.expanded
    return RolloutSample(
        prompt=[],
        completion=[],
        input_ids=expanded.token_ids.astype(np.int64),
        completion_mask=expanded.loss_mask.astype(np.int64),
        old_log_probs=expanded.logprobs,
        advantage=float(advantages[segment.prompt_length]),
        model_version=min(segment.known_versions or [-1]),
        group_id=group_id,
        metrics={"reward": reward},
    )
