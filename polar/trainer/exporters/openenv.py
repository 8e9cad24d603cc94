"""OpenEnv's `TrainingTrace` (`openenv/core/harness/training.py`, openenv 0.10.0), of which TRL's asynchronous GRPO makes its rows
(`trl/experimental/async_grpo/openenv_harness.py`, trl 1.16.0).

OpenEnv requires: a turn is one call of the engine with its whole prompt; its loss mask covers prompt and completion, with 0 on the prompt;
logprobs are finite and not above 0; node ids are unique. TRL appends a turn to its last row if the row's tokens begin the turn's prompt;
otherwise the turn begins a new row. So turns come trace by trace. All rows of a session have one advantage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from polar.export.call_tokens import CallTokens, Use, call_tokens
from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.segments import Segment, one_reward, segments
from topics.types.trajectory import Call, Trajectory

OTHER_ROWS = "use the rows of polar.trainer.grpo, which have an advantage per token"
"""Advice to the caller, for calls with different rewards."""


def training_trace(trajectory: Trajectory) -> dict[str, Any]:
    """The fields of a session's `TrainingTrace`: a turn for each call of which tokens are trained; none without a reward.

    Calls without a trained token (side calls, masked calls) have no turn: the tokens of those that the agent continued are in later
    prompts. Where only a part of an answer is trained, the mask and the logprobs of the rest are 0. Messages aren't in a trajectory, so
    `request` and `response` are left out.

    Raises InputError for images and sounds, for calls with different rewards, and as `require_alike` does.
    """
    require_alike([trajectory])
    credited = {trajectory.traces[row.index].trace_id: row.index for row in _rows(trajectory)}
    found: list[tuple[int, int, dict[str, Any]]] = []
    for index, tokens in call_tokens(trajectory).items():
        uses = {use: credited[use.trace_id] for use in tokens.uses if use.trace_id in credited}
        if uses:
            turn = _turn(trajectory, trajectory.calls[index], tokens, uses)
            found.append((min(uses.values()), len(tokens.prompt), turn))
    return {"schema_version": 1, "turns": [turn for *_, turn in sorted(found, key=lambda one: one[:2])]}


def env_reward(trajectory: Trajectory) -> float | None:
    """The reward of a session's `VerifyResult`: that of the calls that are trained, which agree; None if it has none.

    Raises InputError for calls with different rewards, and for images and sounds.
    """
    rows = _rows(trajectory)
    return rows[0].rewards[0] if rows else trajectory.reward


def _rows(trajectory: Trajectory) -> list[Segment]:
    """The traces that are trained. Raises InputError if their calls have different rewards."""
    rows = segments(trajectory) if trajectory.reward is not None else []
    if rows:
        one_reward(trajectory, rows, OTHER_ROWS)
    return rows


def _turn(trajectory: Trajectory, call: Call, tokens: CallTokens, trained: Iterable[Use]) -> dict[str, Any]:
    assert tokens.logprobs is not None, "a trained call has its logprobs"
    mask = np.zeros(len(tokens.sampled), dtype=np.int64)
    for use in trained:
        mask[use.start : use.end] = 1
    return {
        "node_id": call.call_id,
        "prompt_token_ids": tokens.prompt.tolist(),
        "completion_token_ids": tokens.sampled.tolist(),
        # An engine's rounding may leave a tiny positive number, which OpenEnv refuses.
        "per_token_logps": (np.minimum(tokens.logprobs, 0) * mask).tolist(),
        "loss_mask": [0] * len(tokens.prompt) + mask.tolist(),
        "metadata": {
            "session_id": trajectory.session_id,
            "kind": call.kind,
            "model": call.model_served,
            "temperature": call.sampling.temperature,
            "policy_version": call.policy_version,
            "finish_reason": call.finish_reason,
        },
    }
