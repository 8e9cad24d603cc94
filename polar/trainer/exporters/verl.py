"""verl's `AgentLoopOutput` and the `DataProto` that its workers make of them (`verl/experimental/agent_loop/agent_loop.py`, verl 0.9.1).

verl requires: prompts are padded on the left, responses on the right; `response_mask` is 1 on the model's tokens alone; the reward is on
the last token of the response; `uid` names the group. If a rollout has several outputs, verl copies the reward and `reward_extra_info` of
the last one to the others (`trainer/ppo/v1/agent_loop_tq.py`), and only the last one enters the group's baseline
(`trainer/ppo/v1/utils.py`). Here the longest trace is last, and calls with different rewards are for `data_proto` alone, which has an
advantage per token. `routed_experts` is of all layers and of all tokens of prompt and response but the last, whose row stays zero
(`align_r3_router_replay_data` of `verl/utils/megatron/router_replay_utils.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.replayed import of_all, routed_experts
from polar.trainer.exporters.segments import Load, Segment, loaded, one_reward, rewarded, segments
from polar.trainer.groups import Group
from polar.trainer.replay import Experts, Replay
from polar.trainer.rows import grpo
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory


class DataProto(msgspec.Struct, frozen=True):
    """verl's type: pass its fields to `DataProto.from_dict(tensors, non_tensors, meta_info)`, with the arrays of `batch` as tensors."""

    batch: dict[str, NDArray[Any]]
    """int64 [rows, prompt_length], [rows, response_length] or both; float32 where it is scores or logprobs."""
    non_tensor_batch: dict[str, NDArray[Any]]
    """object or int32 [rows]"""
    meta_info: dict[str, Any]


def agent_loop_outputs(
    trajectory: Trajectory,
    *,
    unknown_version: int | None = None,
    load: Load | None = None,
    replay: Replay | None = None,
) -> list[dict[str, Any]]:
    """The arguments of one `AgentLoopOutput` per trace. Empty for a session without a reward: the agent loop then returns None.

    `unknown_version`: the global step to use for an unknown policy version; without it, an unknown version raises InputError. So do calls
    with different rewards. `load` returns the images and sounds of rows that have any, for `multi_modal_data`; without it such a row raises
    InputError.
    With `replay`, outputs have the routed experts that were captured; raises InputError as `replayed.py` says.
    """
    parts = segments(trajectory, with_media=True)
    if trajectory.reward is None or not parts:
        return []
    require_alike([trajectory])
    reward = one_reward(trajectory, parts, "use data_proto, which has an advantage per token")
    return [
        _output(trajectory, segment, reward, unknown_version)
        | _media(trajectory, segment, load)
        | _replayed(routed_experts(replay, trajectory, segment))
        for segment in parts
    ]


def data_proto(
    groups: Sequence[Group],
    *,
    prompt_length: int,
    response_length: int,
    pad_token_id: int,
    leave_one_out: bool = False,
    unknown_version: int | None = None,
    replay: Replay | None = None,
) -> DataProto:
    """A batch of all rows with `advantages` and `returns`, which replace verl's own computation: per rollout, or per call with a reward.

    Raises InputError for a prompt or response over its length, for a row with images, if no row is left, and for an unknown version as
    `agent_loop_outputs`; with `replay` as `replayed.py` says, and for sessions of which only some
    have routed experts.
    """
    require_alike(trajectory for group in groups for trajectory in group.trajectories)
    rows = [
        (trajectory, segment)
        for group in groups
        for trajectory, parts in rewarded(group)
        for segment in parts
        if _fits(trajectory, segment, prompt_length, response_length)
    ]
    if not rows:
        raise InputError("groups", [group.task_id for group in groups], "no session has a reward and tokens to train")
    advantages = {
        (row.session_id, row.trace): row.advantages
        for group in groups
        for row in grpo(group, leave_one_out=leave_one_out)
    }
    returns = [
        advantages[trajectory.session_id, segment.index][segment.prompt_length :] for trajectory, segment in rows
    ]
    parts = [segment for _, segment in rows]
    tensors = _tensors(parts, returns, prompt_length, response_length, pad_token_id)
    experts = of_all([(each, routed_experts(replay, each, segment)) for each, segment in rows], "routed_experts")
    padded = None if experts is None else _all_experts(experts, parts, prompt_length, prompt_length + response_length)
    return DataProto(tensors | _replayed(padded), _names(rows, unknown_version), {})


def _all_experts(experts: Sequence[Experts], parts: Sequence[Segment], prompt_length: int, width: int) -> Experts:
    """int16 [rows, width, layers, top_k], zeros where there is no token."""
    made = np.zeros((len(experts), width, *experts[0].shape[1:]), dtype=np.int16)
    for row, one, segment in zip(made, experts, parts, strict=True):
        start = prompt_length - segment.prompt_length
        row[start : start + len(one)] = one
    return made


def _replayed(experts: Experts | None) -> dict[str, Any]:
    return {} if experts is None else {"routed_experts": experts}


def _tensors(
    parts: Sequence[Segment], returns: list[Any], prompt_length: int, response_length: int, pad_token_id: int
) -> dict[str, NDArray[Any]]:
    def left(values: list[Any], fill: int) -> NDArray[Any]:
        return _padded(values, prompt_length, np.int64, fill, is_left=True)

    def right(values: list[Any], kind: type[np.generic], fill: int = 0) -> NDArray[Any]:
        return _padded(values, response_length, kind, fill, is_left=False)

    prompts, responses = [segment.prompt_ids for segment in parts], [segment.response_ids for segment in parts]
    made = {
        "prompts": left(prompts, pad_token_id),
        "responses": right(responses, np.int64, pad_token_id),
        "response_mask": right([segment.response_mask for segment in parts], np.int64),
        "rollout_log_probs": right([segment.response_logprobs for segment in parts], np.float32),
        "rm_scores": right([_on_last(segment) for segment in parts], np.float32),
        "advantages": right(returns, np.float32),
        "returns": right(returns, np.float32),
    }
    ones = [left([np.ones_like(ids) for ids in prompts], 0), right([np.ones_like(ids) for ids in responses], np.int64)]
    attention_mask = np.concatenate(ones, axis=1)
    return {
        **made,
        "input_ids": np.concatenate([made["prompts"], made["responses"]], axis=1),
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(axis=1) - 1).clip(min=0),
    }


def _fits(trajectory: Trajectory, segment: Segment, prompt_length: int, response_length: int) -> bool:
    """True; raises InputError for a longer row, since verl would cut it silently."""
    lengths = (
        ("prompt_length", prompt_length, segment.prompt_length),
        ("response_length", response_length, len(segment)),
    )
    for name, allowed, length in lengths:
        if length > allowed:
            reason = f"{trajectory.session_id}, trace {segment.index}, has {length} tokens there"
            raise InputError(name, allowed, reason)
    return True


def _padded(values: list[Any], width: int, kind: type[np.generic], fill: int, *, is_left: bool) -> NDArray[Any]:
    made = np.full((len(values), width), fill, dtype=kind)
    for row, value in zip(made, values, strict=True):
        if len(value):
            row[-len(value) if is_left else 0 : None if is_left else len(value)] = value
    return made


def _on_last(segment: Segment) -> NDArray[np.float32]:
    scores = np.zeros(len(segment), dtype=np.float32)
    scores[-1] = segment.reward
    return scores


def _names(rows: Sequence[tuple[Trajectory, Segment]], unknown_version: int | None) -> dict[str, NDArray[Any]]:
    steps = [_steps(trajectory, segment, unknown_version) for trajectory, segment in rows]
    columns = {
        "uid": [trajectory.task_id for trajectory, _ in rows],
        "session_id": [trajectory.session_id for trajectory, _ in rows],
        "min_global_steps": [one["min_global_steps"] for one in steps],
        "max_global_steps": [one["max_global_steps"] for one in steps],
    }
    turns = np.array([_turns(segment) for _, segment in rows], dtype=np.int32)
    return {"__num_turns__": turns, **{name: np.array(column, dtype=object) for name, column in columns.items()}}


def _output(trajectory: Trajectory, segment: Segment, reward: float, unknown_version: int | None) -> dict[str, Any]:
    names = {"session_id": trajectory.session_id, "trace": segment.index}
    generating_s = sum(call.completed_at - call.received_at for call in segment.calls) / 1000
    return {
        "prompt_ids": segment.prompt_ids,
        "response_ids": segment.response_ids,
        "response_mask": segment.response_mask,
        "response_logprobs": segment.response_logprobs,
        "reward_score": reward,
        "num_turns": _turns(segment),
        "metrics": {"generate_sequences": generating_s, "tool_calls": 0.0, "num_preempted": -1},
        # verl reads it from the last output of a rollout that has a reward.
        "extra_fields": {"reward_extra_info": {}, **_steps(trajectory, segment, unknown_version), **names},
    }


def _media(trajectory: Trajectory, segment: Segment, load: Load | None) -> dict[str, Any]:
    found = loaded(trajectory, segment, load)
    return {} if found is None else {"multi_modal_data": found}


def _turns(segment: Segment) -> int:
    """The number of turns: the prompt or an observation before each call, and the call's answer."""
    return 2 * len(segment.calls)


def _steps(trajectory: Trajectory, segment: Segment, unknown_version: int | None) -> dict[str, int]:
    """The policy versions of a row, as the global steps with which verl computes."""
    known = segment.known_versions or ([] if unknown_version is None else [unknown_version])
    if not known:
        reason = f"{trajectory.session_id}: its policy version is unknown; publish verl's steps as versions, or pass unknown_version=…"
        raise InputError("policy_version", None, reason)
    return {"min_global_steps": min(known), "max_global_steps": max(known)}
