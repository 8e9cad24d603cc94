"""NeMo-Gym's results and NeMo-RL's message logs (`nemo_gym/openai_utils.py`, NVIDIA-NeMo/Gym at 07d6b0d07;
`nemo_rl/environments/nemo_gym.py`, NVIDIA-NeMo/RL at 7ea279abf, August 2026).

What NeMo-RL asks: each output item's `prompt_token_ids` begin with all tokens of the items before it, what they sampled included; what was
sampled is not empty and its logprobs are numbers; a message log alternates between user and assistant, of which only the
assistant's tokens are trained. So one linear trace is one result, and a run of trained tokens is one item.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polar.trainer.exporters.segments import Segment, rewarded
from polar.trainer.groups import Group
from topics.types.trajectory import Trajectory


def results(group: Group, *, task_index: int) -> list[dict[str, Any]]:
    """Gym results: each trace's, with its session's reward. A session of several traces has several, with one `_ng_rollout_index`."""
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
    """What NeMo-RL makes of such a result: messages of tokens, as arrays, int64, and float32 `generation_logprobs`.

    What follows the last trained token is left out, as there.
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
