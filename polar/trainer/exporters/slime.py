"""slime's `Sample` (`slime/utils/types.py`, THUDM/slime at 624b824a8, August 2026; no package index has slime), as dictionaries for
`Sample.from_dict`.

slime requires: `loss_mask` and `rollout_log_probs` cover the response alone, with `response_length` values, 0.0 where the mask is 0;
samples of one rollout share a `rollout_id`, over which the loss averages; a rollout function returns, per prompt, rollouts of samples.
slime's reward normalisation counts rows instead of rollouts: if rollouts have several rows, pass `advantages` and run slime with
`--disable-rewards-normalization`. A sample has one reward for all of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polar.trainer.exporters.segments import Segment, one_reward, segments
from polar.trainer.groups import Group
from topics.types.errors import InputError
from topics.types.session import Status
from topics.types.trajectory import Trajectory

STATUS = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.TIMED_OUT: "truncated",
    Status.CANCELLED: "aborted",
}
"""The values of slime's `Sample.Status`."""

PER_REQUEST = "build with per_request, which makes a sample of each call, and leave advantages out"
"""What the caller can do with calls that have rewards of their own."""


def samples(
    group: Group, *, group_index: int, first_index: int, advantages: Sequence[float | None] | None = None
) -> list[list[dict[str, Any]]]:
    """The group's rollouts, each a list of samples: one prompt's entry in the result of a rollout function.

    `index` and `rollout_id` count sessions from `first_index`. A sample's `reward` is that of its calls. With `advantages`, one per
    trajectory of the group, it is its rollout's advantage; a rollout without one is left out. `metadata["raw_reward"]`, which slime logs,
    is always the trace's reward. Raises InputError for a sample whose calls have different rewards, and with `advantages` for calls that
    have another reward than their trace.
    """
    scores = group.rewards if advantages is None else advantages
    found = []
    for index, (trajectory, score) in enumerate(zip(group.trajectories, scores, strict=True), first_index):
        if trajectory.reward is not None and score is not None and (rows := segments(trajectory)):
            advantage = None if advantages is None else score
            found.append([_sample(trajectory, row, group_index, index, advantage) for row in rows])
    return found


def _sample(
    trajectory: Trajectory, segment: Segment, group_index: int, index: int, advantage: float | None
) -> dict[str, Any]:
    reward = one_reward(trajectory, [segment], PER_REQUEST)
    if advantage is not None and reward != segment.reward:
        reason = f"its calls have the reward {reward} of their own, and advantages has one per session: {PER_REQUEST}"
        raise InputError("groups", trajectory.session_id, reason)
    names = {"session_id": trajectory.session_id, "task_id": trajectory.task_id, "trace": segment.index}
    is_cut = segment.expanded.trace.finish_reason == "length"
    return {
        "group_index": group_index,
        "index": index,
        "rollout_id": index,
        "tokens": segment.expanded.token_ids.tolist(),
        "response_length": len(segment),
        "reward": reward if advantage is None else advantage,
        "loss_mask": segment.response_mask,
        "weight_versions": [str(version) for version in segment.policy_versions if version is not None],
        "rollout_log_probs": segment.response_logprobs,
        "status": "truncated" if is_cut else STATUS[trajectory.status],
        "metadata": {**trajectory.task_metadata(), **names, "raw_reward": segment.reward},
        "session_id": trajectory.session_id,
    }
