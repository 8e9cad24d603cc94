"""NeMo-Gym's results and NeMo-RL's message logs (`BaseVerifyResponse` of `nemo_gym/base_resources_server.py`, nemo-gym 0.7.0;
`nemo_rl/environments/nemo_gym.py` and `nemo_rl/experience/rollouts.py`, NVIDIA-NeMo/RL at 7ea279abf, August 2026; no package index has
NeMo-RL).

NeMo-RL requires: each output item's `prompt_token_ids` begin with all tokens of earlier items, including the sampled ones; sampled tokens
are not empty and have finite logprobs; a message log alternates between user and assistant, and only the assistant's tokens are
trained. It reads one result as one sample of its prompt, with one reward, and every result enters the prompt's baseline. So one session
is one result here, a linear trace, and one run of trained tokens is one item.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polar.trainer.exporters.segments import Branches, Segment, one_reward, only
from polar.trainer.groups import Group
from topics.types.trajectory import Trajectory


def results(group: Group, *, task_index: int, branches: Branches = "refuse") -> list[dict[str, Any]]:
    """One Gym result per session with a reward and trained tokens. `_ng_rollout_index` is the sample's index.

    `branches`: refuse a session with several traces, or train only its longest trace. Raises InputError for a refused session, and for
    one whose calls have different rewards.
    """
    return [
        _result(trajectory, segment, task_index)
        for trajectory in group.trajectories
        if trajectory.reward is not None
        and (segment := only(trajectory, branches, "make a message_log of each, with advantages of your own"))
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


def _result(trajectory: Trajectory, segment: Segment, task_index: int) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": []},
        "response": _response(trajectory, segment),
        "reward": one_reward(trajectory, [segment], "make a message_log, with advantages of your own"),
        "_ng_rollout_id": trajectory.session_id,
        "_ng_task_index": task_index,
        "_ng_rollout_index": trajectory.sample_index,
    }


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
    first, *_ = segment.calls
    return {
        "id": name,
        "object": "response",
        "created_at": first.received_at / 1000,
        "model": first.model_served or "",
        "output": items,
        # Required by the type; NeMo-RL reads none of them.
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
