"""NeMo-Gym's results and NeMo-RL's message logs (`nemo_gym/openai_utils.py`, NVIDIA-NeMo/Gym at 07d6b0d07;
`nemo_rl/environments/nemo_gym.py`, NVIDIA-NeMo/RL at 7ea279abf, August 2026).

NeMo-RL requires: each output item's `prompt_token_ids` begin with all tokens of earlier items, including the sampled ones; sampled tokens
are not empty and have finite logprobs; a message log alternates between user and assistant, and only the assistant's tokens are trained.
With router replay, each item's `routed_experts` has a row for each token of its prompt and generation, in one string
(`nemo_rl/utils/routed_experts_codec.py`); the generation's last row is that of experts 0, 1, …, which the next item's prompt replaces. Here
one linear trace is one result, and one run of trained tokens is one item.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from polar.trainer.exporters.replayed import routed_experts, with_last_row
from polar.trainer.exporters.segments import Segment, rewarded
from polar.trainer.groups import Group
from polar.trainer.replay import Experts, Replay
from topics.types.trajectory import Trajectory


def results(group: Group, *, task_index: int, replay: Replay | None = None) -> list[dict[str, Any]]:
    """One Gym result per trace, with the trace's reward. The results of one session have the same `_ng_rollout_index`.

    With `replay`, items have the routed experts that were captured; raises InputError as `replayed.py` says.
    """
    return [
        {
            "responses_create_params": {"input": []},
            "response": _response(trajectory, segment, routed_experts(replay, trajectory, segment)),
            "reward": segment.reward,
            "_ng_rollout_id": trajectory.session_id,
            "_ng_task_index": task_index,
            "_ng_rollout_index": trajectory.sample_index,
        }
        for trajectory, parts in rewarded(group)
        for segment in parts
    ]


def message_log(segment: Segment, experts: Experts | None = None) -> list[dict[str, Any]]:
    """The message log that NeMo-RL makes of a result: `token_ids` as int64 arrays, `generation_logprobs` as float32 arrays, and with the
    `experts` of `replayed.routed_experts` also `routed_experts` as int16 arrays.

    As in NeMo-RL, tokens after the last trained one are left out.
    """
    rows = None if experts is None else _with_default_row(experts)
    ids, logprobs = segment.expanded.token_ids, segment.expanded.logprobs
    log: list[dict[str, Any]] = []
    at = 0
    for start, end in segment.runs():
        log.append(
            {"role": "user", "content": "", "token_ids": ids[at:start].astype(np.int64)} | _routed(rows, at, start)
        )
        log.append(
            {
                "role": "assistant",
                "content": "",
                "token_ids": ids[start:end].astype(np.int64),
                "generation_logprobs": logprobs[start:end],
                "is_invalid_tool_call": False,
                "has_malformed_thinking": False,
            }
            | _routed(rows, start, end)
        )
        at = end
    return log


def _response(trajectory: Trajectory, segment: Segment, experts: Experts | None) -> dict[str, Any]:
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
            **({} if experts is None else {"routed_experts": _envelope(experts[: end - 1])}),
        }
        for number, (start, end) in enumerate(segment.runs())
    ]
    return {"id": name, "object": "response", "output": items}


def _envelope(experts: Experts) -> str:
    """NeMo-RL's string of the experts of an item's tokens, of which the last one was never read: `nrlre1:int16:SxLxK:` and base64."""
    rows = _with_default_row(experts)
    return f"nrlre1:{rows.dtype.name}:{'x'.join(map(str, rows.shape))}:{base64.b64encode(rows.tobytes()).decode()}"


def _with_default_row(experts: Experts) -> Experts:
    return with_last_row(experts, np.arange(experts.shape[2], dtype=np.int16))


def _routed(rows: Experts | None, start: int, end: int) -> dict[str, Any]:
    return {} if rows is None else {"routed_experts": rows[start:end]}
