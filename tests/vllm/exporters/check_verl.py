"""verl's own types and code on the rows of `polar.trainer.exporters.verl`, and its own batches through `polar.trainer.verl`.

    check_verl.py GROUPS

Runs in the trainers' environment (`packages.py`); GROUPS is a msgpack array of groups. Fails with verl's error or an AssertionError.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import torch
import transfer_queue
from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils
from verl.utils.model import compute_position_id_with_mask

from polar.trainer.exporters.verl import agent_loop_outputs, data_proto
from polar.trainer.groups import Group
from polar.trainer.verl import PolarAgentLoopManager
from tests.polar.trainer.verl_settings import config
from tests.vllm.exporters.training_requests import Requests

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


def body(row: Any) -> dict[str, Any]:
    assert row.keys() == {"raw_prompt", "index"}, row.keys()
    return {"instruction": row["raw_prompt"][0]["content"], "agent": {"harness": "pi"}}


class Queue:
    """Stands for verl's TransferQueue, which needs Ray: what was put, by partition and key."""

    def __init__(self) -> None:
        self.fields: TensorDict | None = None
        self.keys: list[str] = []
        self.tags: dict[tuple[str, str], dict[str, Any]] = {}

    def put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        self.tags |= {(partition_id, key): tag for key, tag in zip(keys, tags, strict=True)}
        if fields is not None:
            assert fields.batch_size == torch.Size([len(keys)])
            self.keys, self.fields = keys, fields


def call(groups: Sequence[Group], step: int, *, is_validation: bool = False) -> tuple[Queue, Requests]:
    """A batch as `PPOTrainer` makes it, one prompt per group, through our manager."""
    raw_prompts = np.empty(len(groups), dtype=object)
    raw_prompts[:] = [[{"role": "user", "content": f"p{at}"}] for at in range(len(groups))]
    prompts = {
        "raw_prompt": raw_prompts,
        "dummy_tensor": torch.zeros(len(groups), 1, dtype=torch.uint8),
        "index": np.arange(len(groups)).astype(object),
        "uid": np.array([f"u{at}" for at in range(len(groups))], dtype=object),
    }
    batch = tensordict_utils.get_tensordict(prompts)
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", step)
    if is_validation:
        tensordict_utils.assign_non_tensor_data(batch, "validate", True)
    queue, requests = Queue(), Requests(groups, samples=3)
    made: Any = {"temperature": 1.0, "n": 3, "val_kwargs": {"temperature": 0.0, "n": 3}}
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(transfer_queue, "kv_batch_put", queue.put):
        settings = config()
        settings["actor_rollout_ref"]["rollout"] |= made
        settings["trainer"]["default_local_dir"] = folder
        settings["polar"] = {"task": f"{__name__}.body", "run": "r1", "data": folder}
        manager = PolarAgentLoopManager.create(config=settings, llm_client=None, teacher_client=None)
        manager._run = requests  # type: ignore[assignment]
        manager.generate_sequences(batch)
        assert (Path(folder) / "polar" / f"{step}.json").exists() != is_validation
    return queue, requests


def published(group: Group) -> Group:
    """The group as a `TrainingRun` returns it: sampled by weights of a known version."""
    return Group(
        group.task_id,
        [
            msgspec.structs.replace(
                trajectory,
                calls=[msgspec.structs.replace(one, policy_version=3, policy_spans=[]) for one in trajectory.calls],
            )
            for trajectory in group.trajectories
        ],
    )


def check_manager(groups: Sequence[Group]) -> None:
    """verl computes advantages of what our manager put, from the fields and by the keys that it reads."""
    queue, requests = call(groups, 4)
    assert requests.published == [3]
    assert requests.instructions == [f"p{at}" for at in range(len(groups))]
    assert all(queue.tags["train", f"u{at}"] == {"status": "finished"} for at in range(len(groups)))
    assert queue.fields is not None
    fields = queue.fields
    wanted = ("response_mask", "rm_scores", "rollout_log_probs", "responses")
    proto = DataProto(batch=fields.select(*wanted).to_padded_tensor())
    proto.non_tensor_batch["uid"] = np.array(list(fields["uid"]), dtype=object)
    assert [key.split("_")[0] for key in queue.keys] == proto.non_tensor_batch["uid"].tolist()
    proto.batch["token_level_rewards"] = proto.batch["rm_scores"]
    made = compute_advantage_for_multi_trajectories(proto, queue.keys, AdvantageEstimator.GRPO)
    assert torch.isfinite(made.batch["advantages"]).all()
    lengths = fields["input_ids"].offsets().diff()
    assert torch.equal(lengths, fields["prompts"].offsets().diff() + fields["responses"].offsets().diff())
    assert lengths.tolist() == [queue.tags["train", key]["seq_len"] for key in queue.keys]
    assert fields["position_ids"].offsets().diff().tolist() == lengths.tolist()
    assert {"uid", "loss_mask", "num_turns", "extra_fields", "multi_modal_inputs", "raw_prompt"} <= {*fields.keys()}
    queue, requests = call(groups, 4, is_validation=True)
    assert requests.published == [4]
    assert {partition for partition, _ in queue.tags} == {"val"}


def main() -> None:
    groups = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=list[Group])
    rows = [check_outputs(group) for group in groups]
    for group, count in zip(groups, rows, strict=True):
        if count:
            check_batch(group)
    exported = [published(group) for group, count in zip(groups, rows, strict=True) if count]
    check_manager([*exported, Group("nothing to train", [])])
    print(sum(rows), "rows")


if __name__ == "__main__":
    main()
