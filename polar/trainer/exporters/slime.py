"""slime's `Sample` (`slime/utils/types.py`, THUDM/slime at 624b824a8, August 2026; no package index has slime), as dictionaries for
`Sample.from_dict`.

slime requires: `loss_mask` and `rollout_log_probs` cover the response alone, with `response_length` values, 0.0 where the mask is 0;
samples of one rollout share a `rollout_id`, over which the loss averages; a rollout function returns, per prompt, rollouts of samples.
slime's reward normalisation counts rows instead of rollouts: if rollouts have several rows, pass `advantages` and run slime with
`--disable-rewards-normalization`. A sample has one reward for all of its tokens.

`rollout_routed_experts` has a row for each token but the last, of all layers (`slime/backends/megatron_utils/cp_utils.py`). The tokens of
`rollout_top_p_token_ids` between two `rollout_top_p_token_offsets` are those that truncation left in the place of a token of the response.
slime looks at a batch's first sample alone to tell whether there are any (`slime/ray/rollout.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.replayed import of_all, response_mask, routed_experts
from polar.trainer.exporters.segments import Load, Segment, loaded, one_reward, segments
from polar.trainer.groups import Group
from polar.trainer.replay import Replay
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
"""Advice to the caller, for calls with rewards of their own."""


def samples(
    group: Group,
    *,
    group_index: int,
    first_index: int,
    advantages: Sequence[float | None] | None = None,
    load: Load | None = None,
    replay: Replay | None = None,
) -> list[list[dict[str, Any]]]:
    """The group's rollouts, each a list of samples: one prompt's entry in the result of a rollout function.

    `index` and `rollout_id` count sessions from `first_index`. A sample's `reward` is that of its calls. With `advantages`, one per
    trajectory of the group, it is its rollout's advantage; a rollout without one is left out. `metadata["raw_reward"]`, which slime logs,
    is always the trace's reward. Raises InputError for a sample whose calls have different rewards, and with `advantages` for calls that
    have another reward than their trace. `load` returns the images of rows that have any, for `multimodal_inputs`; without it such a row
    raises InputError.
    With `replay`, samples have the routed experts and the sampling masks that were captured; raises InputError as `replayed.py` says,
    and for sessions of which only some have these values.
    """
    require_alike(group.trajectories)
    scores = group.rewards if advantages is None else advantages
    rollouts: list[tuple[Trajectory, list[Segment], list[dict[str, Any]]]] = []
    for index, (trajectory, score) in enumerate(zip(group.trajectories, scores, strict=True), first_index):
        if trajectory.reward is not None and score is not None and (rows := segments(trajectory, with_media=True)):
            advantage = None if advantages is None else score
            made = [_sample(trajectory, row, group_index, index, advantage, load) for row in rows]
            rollouts.append((trajectory, rows, made))
    replayed = _replayed(replay, [(trajectory, row) for trajectory, rows, _ in rollouts for row in rows])
    return [[one | next(replayed) for one in made] for _, _, made in rollouts]


def _sample(
    trajectory: Trajectory, segment: Segment, group_index: int, index: int, advantage: float | None, load: Load | None
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
        "multimodal_inputs": loaded(trajectory, segment, load),
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


def _replayed(replay: Replay | None, rows: Sequence[tuple[Trajectory, Segment]]) -> Iterator[dict[str, Any]]:
    """By row: int32 arrays, as slime gets them from its own engine."""
    experts = of_all([(each, routed_experts(replay, each, row)) for each, row in rows], "routed_experts")
    masks = of_all([(each, response_mask(replay, each, row)) for each, row in rows], "sampling_mask")
    for at in range(len(rows)):
        fields: dict[str, Any] = {}
        if experts is not None:
            fields["rollout_routed_experts"] = experts[at].astype(np.int32)
        if masks is not None:
            fields["rollout_top_p_token_ids"] = masks[at].token_ids
            fields["rollout_top_p_token_offsets"] = masks[at].offsets
        yield fields
