"""NeMo-Gym's results and NeMo-RL's message logs (`nemo_gym/openai_utils.py`, NVIDIA-NeMo/Gym at 07d6b0d07;
`nemo_rl/environments/nemo_gym.py`, NVIDIA-NeMo/RL at 7ea279abf, August 2026).

NeMo-RL requires: each output item's `prompt_token_ids` begin with all tokens of earlier items, including the sampled ones; sampled tokens
are not empty and have finite logprobs; a message log alternates between user and assistant, and only the assistant's tokens are
trained. Here one linear trace is one result, and one run of trained tokens is one item.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.segments import Segment, rewarded
from polar.trainer.groups import Group
from topics.types.trajectory import Trajectory


def results(group: Group, *, task_index: int) -> list[dict[str, Any]]:
    """One Gym result per trace, with the trace's reward. The results of one session have the same `_ng_rollout_index`."""
    require_alike(group.trajectories)
    return [
        {
            "responses_create_params": {"input": []},
            "response": _response(trajectory, segment),
            "reward": segment.reward,
            "_ng_rollout_id": trajectory.session_id,
            "_ng_task_index": task_index,
            "_ng_rollout_index": trajectory.sample_index,
        }
        for trajectory, parts in rewarded(group)
        for segment in parts
    ]


def message_log(segment: Segment) -> list[dict[str, Any]]:
    """The message log that NeMo-RL makes of a result: `token_ids` as int64 arrays, `generation_logprobs` as float32 arrays.

    As in NeMo-RL, tokens after the last trained one are left out.
    """
    ids, logprobs = segment.expanded.token_ids, segment.expanded.logprobs
    log: list[dict[str, Any]] = []
    at = 0
    for start, end in segment.runs():
        log.append({"role": "user", "content": "", "token_ids": ids[at:start].astype(np.int64)})
        log.append(
            {
                "role": "assistant",
                "content": "",
                "token_ids": ids[start:end].astype(np.int64),
                "generation_logprobs": logprobs[start:end],
                "is_invalid_tool_call": False,
                "has_malformed_thinking": False,
            }
        )
        at = end
    return log


def _response(trajectory: Trajectory, segment: Segment) -> dict[str, Any]:
    ids, logprobs = segment.expanded.token_ids.tolist(), segment.expanded.logprobs.tolist()
    name = f"{trajectory.session_id}/{segment.index}"
    items = [
        {
            "id": f"{name}/{number}",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [],
            "prompt_token_ids": ids[:start],
            "generation_token_ids": ids[start:end],
            "generation_log_probs": logprobs[start:end],
        }
        for number, (start, end) in enumerate(segment.runs())
    ]
    return {"id": name, "object": "response", "output": items}
