"""prime-rl's `TrainingSample` (`src/prime_rl/transports/rollouts/types.py`, PrimeIntellect-ai/prime-rl at 559b44772, August 2026; no
package index has prime-rl).

prime-rl requires (`trainer/batch.py`): one sample per branch, without a split into prompt and response; all arrays as long as `token_ids`;
shared tokens of branches are trained in the first branch; one advantage per token, since its trainer computes none. The trainer divides the
logits at an index by the temperature at that index (`trainer/rl/train.py`), and these logits predict the next token. So a token's
temperature is one place before it. Mask, logprobs, advantages and weights are at the token: prime-rl shifts its own logprobs there. Routed
experts are of all layers, with a row for each token, zeros for the last one (`orchestrator/trajectories.py`), and of one dtype in all
samples of a batch.

prime-rl's orchestrator packs samples in its own process (`prepare_batch`) and sends the packed batches. To hand it these samples, decode
their bytes: `msgspec.msgpack.encode` of this type gives an array that prime-rl's type decodes.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from polar.trainer.exporters.alike import require_alike
from polar.trainer.exporters.replayed import routed_experts, with_last_row
from polar.trainer.exporters.segments import refuse_media, segment_of
from polar.trainer.groups import Group
from polar.trainer.replay import Replay
from polar.trainer.rows import grpo
from topics.types.completion import Sampling
from topics.types.errors import InputError
from topics.types.trajectory import Trajectory, expand

PLAIN = 1.0
"""The temperature where the next token isn't trained."""
RESERVED = "all"
"""The `env_name` under which prime-rl adds up its metrics."""


class RoutedExperts(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """prime-rl's type, field by field."""

    data: bytes
    shape: list[int]
    """[tokens, layers, top_k]"""
    dtype: str


class TrainingSample(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """prime-rl's type, field by field. Fields of type None are those for which Polar has no data."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    """`temperatures[t]` scales the logits that predict token t + 1."""
    env_name: str
    ref_logprobs: None = None
    mm_kwargs: None = None
    routed_experts: RoutedExperts | None = None
    mm_token_type_ids: None = None
    rl_weights: list[float] | None = None
    ce_weights: None = None
    ref_kl_weights: None = None
    advantages: list[float] | None = None


def training_samples(
    group: Group,
    *,
    env_name: str,
    unknown_temperature: float | None = None,
    by_deviation: bool = True,
    leave_one_out: bool = False,
    by_session: bool = False,
    replay: Replay | None = None,
) -> list[TrainingSample]:
    """The group's rows with GRPO's advantages per rollout, or per call with a reward.

    `unknown_temperature`: the temperature of calls that set none, which is the engine's default. Raises InputError for such calls without
    it, and for greedy calls.
    `by_session` gives all sessions the same total weight (`rl_weights`, with mean 1 over the group's tokens). Otherwise each token has
    weight 1, as in prime-rl. Raises InputError for a row with images: prime-rl takes them processed by its own renderer.
    With `replay`, samples have the routed experts that were captured; raises InputError as `replayed.py` says.
    """
    if env_name == RESERVED:
        raise InputError("env_name", env_name, "is reserved by prime-rl: name the environment")
    if Sampling(temperature=unknown_temperature).greedy:
        reason = (
            "is greedy, and prime-rl divides logits by it: leave unknown temperatures out, by expect(temperature=…)"
        )
        raise InputError("unknown_temperature", unknown_temperature, reason)
    require_alike(group.trajectories, one_temperature=False)
    rows = grpo(group, by_deviation=by_deviation, leave_one_out=leave_one_out)
    for row in rows:
        refuse_media(row.session_id, row.media)
    weights = [row.weights for row in rows]
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    scale = tokens / len({row.session_id for row in rows}) if rows else 0.0
    sessions = {trajectory.session_id: trajectory for trajectory in group.trajectories}
    return [
        TrainingSample(
            row.token_ids.tolist(),
            row.loss_mask.astype(bool).tolist(),
            row.logprobs.tolist(),
            _temperatures(sessions[row.session_id], row.trace, unknown_temperature).tolist(),
            env_name,
            routed_experts=_routed_experts(replay, sessions[row.session_id], row.trace),
            rl_weights=(weight * scale).tolist() if by_session else None,
            advantages=row.advantages.tolist(),
        )
        for row, weight in zip(rows, weights, strict=True)
    ]


def _temperatures(trajectory: Trajectory, trace: int, unknown: float | None) -> NDArray[np.float64]:
    """float64 [n], at each index the temperature of the next token's logits"""
    expanded = expand(trajectory, trajectory.traces[trace])
    found = np.full(len(expanded.token_ids), PLAIN)
    for span in expanded.spans:
        known = span.call.sampling.temperature
        temperature = unknown if known is None else known
        if temperature is None:
            reason = f"call {span.call.call_id} set none: pass unknown_temperature=…, the engine's default"
            raise InputError("temperature", None, reason)
        if Sampling(temperature=temperature).greedy:
            reason = f"call {span.call.call_id} is greedy, and prime-rl divides logits by it: leave {trajectory.session_id} out"
            raise InputError("temperature", temperature, reason)
        found[max(0, span.start - 1) : span.end - 1] = temperature
    return found


def _routed_experts(replay: Replay | None, trajectory: Trajectory, trace: int) -> RoutedExperts | None:
    experts = routed_experts(replay, trajectory, segment_of(trajectory, trace))
    if experts is None:
        return None
    rows = with_last_row(experts, 0)
    return RoutedExperts(rows.tobytes(), list(rows.shape), rows.dtype.name)
