"""SkyRL's `GeneratorOutput`, step-wise (`skyrl/train/generators/base.py`, skyrl 0.3.0, and NovaSky-AI/SkyRL at a9564572e, August 2026).

SkyRL requires (`validate_generator_output`): all lists have the same length; a row's `loss_masks`, `rollout_logprobs` and response have the
same length; a trajectory's rows are adjacent, and `is_last_step` is True only on the last of them. The reward counts on that row
alone, and the other rows get its advantage, so a session whose calls have different rewards is refused. Here a row is a trace, and the
longest is last. Enable `generator.step_wise_trajectories`. `rollout_expert_indices` has an array of experts for every row or for none, of
all layers and of all tokens but the last, whose row SkyRL fills (`skyrl/train/dataset/preprocess.py`, at the commit; skyrl 0.3.0 takes
nested lists there: call `tolist()` on each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.replayed import of_all, routed_experts
from polar.trainer.exporters.segments import one_reward, rewarded
from polar.trainer.groups import Group
from polar.trainer.replay import Replay


@dataclass(frozen=True)
class TrajectoryID:
    """SkyRL's type."""

    instance_id: str
    """The task."""
    repetition_id: int
    """The sample index."""

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


def generator_output(groups: Sequence[Group], *, replay: Replay | None = None) -> dict[str, Any]:
    """All rows in the order of the groups. Fields for which Polar has no data are None.

    With `replay`, rows have the routed experts that were captured. Raises InputError for a session whose calls have different rewards, as
    `replayed.py` says, and for sessions of which only some have experts.
    """
    require_alike(trajectory for group in groups for trajectory in group.trajectories)
    sessions = [
        (trajectory, parts, one_reward(trajectory, parts, "use the advantages of polar.trainer.grpo"))
        for group in groups
        for trajectory, parts in rewarded(group)
    ]
    rewards = {trajectory.session_id: reward for trajectory, _, reward in sessions}
    rows = [(trajectory, segment, segment is parts[-1]) for trajectory, parts, _ in sessions for segment in parts]
    experts = [(trajectory, routed_experts(replay, trajectory, segment)) for trajectory, segment, _ in rows]
    return {
        "prompt_token_ids": [segment.prompt_ids for _, segment, _ in rows],
        "response_ids": [segment.response_ids for _, segment, _ in rows],
        "rewards": [rewards[trajectory.session_id] if is_last else 0.0 for trajectory, _, is_last in rows],
        "loss_masks": [segment.response_mask for _, segment, _ in rows],
        "stop_reasons": [segment.expanded.trace.finish_reason or "stop" for _, segment, _ in rows],
        "rollout_metrics": None,
        "rollout_logprobs": [segment.response_logprobs for _, segment, _ in rows],
        "trajectory_ids": [TrajectoryID(trajectory.task_id, trajectory.sample_index) for trajectory, _, _ in rows],
        "trajectory_generation_times": None,
        "trajectory_time_splits": None,
        "rollout_expert_indices": of_all(experts, "routed_experts"),
        "is_last_step": [is_last for _, _, is_last in rows],
        "env_metrics": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }
