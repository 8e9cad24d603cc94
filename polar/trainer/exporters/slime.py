"""slime's `Sample` (`slime/utils/types.py`, THUDM/slime at 624b824a8, August 2026), in the form that `Sample.from_dict` takes.

What slime asks: `loss_mask` and `rollout_log_probs` cover the response alone and are `response_length` long, with 0.0 where the mask is
0; samples cut from one rollout share a `rollout_id`, which its loss averages over; a rollout function returns prompts of rollouts of
samples. Its own reward normalisation counts rows, not rollouts, wherever these differ: give `advantages`, and run slime with
`--disable-rewards-normalization`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polar.trainer.exporters.segments import Segment, segments
from polar.trainer.groups import Group
from topics.types.session import Status
from topics.types.trajectory import Trajectory

STATUS = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.TIMED_OUT: "truncated",
    Status.CANCELLED: "aborted",
}
"""`Sample.Status`'s values."""


def samples(
    group: Group, *, group_index: int, first_index: int, advantages: Sequence[float | None] | None = None
) -> list[list[dict[str, Any]]]:
    """The group's rollouts, each a list of its samples: what stands in a rollout function's result for one prompt.

    `index` and `rollout_id` count sessions from `first_index`. `advantages`, one for each of the group's trajectories: a sample's
    `reward` is its rollout's advantage then, and `metadata["raw_reward"]`, which slime logs, the reward; one without is left out.
    """
    given = group.rewards if advantages is None else advantages
    found = []
    for index, (trajectory, reward) in enumerate(zip(group.trajectories, given, strict=True), first_index):
        if trajectory.reward is not None and reward is not None and (rows := segments(trajectory)):
            found.append([_sample(trajectory, row, group_index, index, reward) for row in rows])
    return found


def _sample(trajectory: Trajectory, segment: Segment, group_index: int, index: int, reward: float) -> dict[str, Any]:
    names = {"session_id": trajectory.session_id, "task_id": trajectory.task_id, "trace": segment.index}
    is_cut = segment.expanded.trace.finish_reason == "length"
    return {
        "group_index": group_index,
        "index": index,
        "rollout_id": index,
        "tokens": segment.expanded.token_ids.tolist(),
        "response_length": len(segment),
        "reward": reward,
        "loss_mask": segment.response_mask,
        "weight_versions": [str(version) for version in segment.policy_versions if version is not None],
        "rollout_log_probs": segment.response_logprobs,
        "status": "truncated" if is_cut else STATUS[trajectory.status],
        "metadata": {**trajectory.task_metadata(), **names, "raw_reward": segment.reward},
        "session_id": trajectory.session_id,
    }
