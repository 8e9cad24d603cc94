"""prime-rl's `TrainingSample` (`src/prime_rl/transports/rollouts/types.py`, PrimeIntellect-ai/prime-rl at 559b44772, August 2026).

What prime-rl asks: one sample a branch, without a split into prompt and response; all arrays as long as `token_ids`; what branches share is
trained in the first; advantages come with the sample, per token, since its trainer computes none. On the wire a sample is a msgpack
array: `msgspec.msgpack.encode` of this type gives the bytes that its own type decodes.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from polar.trainer.groups import Group
from polar.trainer.rows import grpo
from topics.types.trajectory import Trajectory, expand

PLAIN = 1.0
"""The temperature told for tokens that nobody sampled, and where a call left it to the engine."""


class TrainingSample(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """As prime-rl's, field by field; the Nones are what Polar has nothing for."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: None = None
    mm_kwargs: None = None
    routed_experts: None = None
    mm_token_type_ids: None = None
    rl_weights: list[float] | None = None
    ce_weights: None = None
    ref_kl_weights: None = None
    advantages: list[float] | None = None


def training_samples(
    group: Group, *, env_name: str, by_deviation: bool = True, leave_one_out: bool = False, by_session: bool = False
) -> list[TrainingSample]:
    """The group's rows, with GRPO's advantages by rollout.

    `by_session`: tokens weigh so that each session weighs as much as another (`rl_weights`, 1 on average over the group); without it
    each token weighs 1, prime-rl's way.
    """
    rows = grpo(group, by_deviation=by_deviation, leave_one_out=leave_one_out)
    weights = [row.weights for row in rows]
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    scale = tokens / len({row.session_id for row in rows}) if rows else 0.0
    sessions = {trajectory.session_id: trajectory for trajectory in group.trajectories}
    return [
        TrainingSample(
            row.token_ids.tolist(),
            row.loss_mask.astype(bool).tolist(),
            row.logprobs.tolist(),
            _temperatures(sessions[row.session_id], row.trace).tolist(),
            env_name,
            rl_weights=(weight * scale).tolist() if by_session else None,
            advantages=row.advantages.tolist(),
        )
        for row, weight in zip(rows, weights, strict=True)
    ]


def _temperatures(trajectory: Trajectory, trace: int) -> NDArray[np.float64]:
    """float64 [n]"""
    expanded = expand(trajectory, trajectory.traces[trace])
    found = np.full(len(expanded.token_ids), PLAIN)
    for span in expanded.spans:
        if span.call.sampling.temperature is not None:
            found[span.start : span.end] = span.call.sampling.temperature
    return found
