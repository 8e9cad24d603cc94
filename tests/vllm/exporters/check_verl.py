"""verl's own types and code on the rows of `polar.trainer.exporters.verl`.

    check_verl.py GROUPS

Runs in the trainers' environment (`packages.py`); GROUPS is a msgpack array of groups. Fails with verl's error or an AssertionError.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.model import compute_position_id_with_mask

from polar.trainer.exporters.verl import agent_loop_outputs, data_proto
from polar.trainer.groups import Group

WIDE = 40
"""Above the length of every trace."""


def check_outputs(group: Group) -> int:
    """The number of rows that became `AgentLoopOutput`s."""
    rows = 0
    for trajectory in group.trajectories:
        outputs = agent_loop_outputs(trajectory, unknown_version=0)
        for fields in outputs:
            assert fields.keys() <= AgentLoopOutput.model_fields.keys(), fields.keys()
            output = AgentLoopOutput(**fields)
            tensors = output.as_dict()
            same_length = ("responses", "response_mask", "rollout_log_probs", "rm_scores")
            assert len({tuple(tensors[name].shape) for name in same_length}) == 1
            assert tensors["rm_scores"].sum() == np.float32(trajectory.reward or 0)
            assert {"reward_extra_info", "min_global_steps", "max_global_steps"} <= tensors["extra_fields"].keys()
        rows += len(outputs)
    return rows


def check_batch(group: Group) -> None:
    exported = data_proto([group], prompt_length=WIDE, response_length=WIDE, pad_token_id=0, unknown_version=0)
    tensors = {name: torch.from_numpy(array) for name, array in exported.batch.items()}
    proto = DataProto.from_dict(tensors, dict(exported.non_tensor_batch), exported.meta_info)
    proto.check_consistency()
    assert torch.equal(compute_position_id_with_mask(proto.batch["attention_mask"]), proto.batch["position_ids"])
    check_advantages(proto, group)


def check_advantages(proto: Any, group: Group) -> None:
    """verl counts each session once, by its last row, and so has our advantages but for the scale."""
    ours = proto.batch["advantages"].clone()
    sessions = proto.non_tensor_batch["session_id"].tolist()
    if len(set(sessions)) < 2:
        return  # verl has no baseline for one
    proto.batch["token_level_rewards"] = proto.batch["rm_scores"]
    keys = [f"{session}_{session}_{index}" for index, session in enumerate(sessions)]
    made = compute_advantage_for_multi_trajectories(proto, keys, AdvantageEstimator.GRPO, norm_adv_by_std_in_grpo=False)
    in_group = [one.reward for one in group.trajectories if one.session_id in sessions and one.reward is not None]
    known = [one.reward for one in group.trajectories if one.reward is not None]
    if len(in_group) == len(known):  # otherwise verl doesn't see a session whose tokens are all masked
        scale = np.std(known) + 1e-6 if len(set(known)) > 1 else 1.0
        torch.testing.assert_close(ours * scale, made.batch["advantages"], atol=1e-5, rtol=1e-4)


def main() -> None:
    groups = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Group])
    rows = [check_outputs(group) for group in groups]
    for group, count in zip(groups, rows, strict=True):
        if count:
            check_batch(group)
    print(sum(rows), "rows")


if __name__ == "__main__":
    main()
