"""GRPO's advantages per rollout: each reward of a group compared with a baseline.

Invariant: a rollout counts once, however many traces it has. A rollout without a reward has no advantage and no influence on the
baseline. `rows.py` assigns advantages to tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EPSILON = 1e-6
"""Added to the standard deviation: rewards that differ by almost nothing don't give huge advantages."""


@dataclass(frozen=True)
class Baseline:
    """An advantage is `(reward - at) / scale`."""

    at: float
    scale: float

    def advantage(self, reward: float) -> float:
        return (reward - self.at) / self.scale


def baselines(
    rewards: Sequence[float | None],
    *,
    of_calls: Sequence[Sequence[float]] = (),
    by_deviation: bool = True,
    leave_one_out: bool = False,
) -> list[Baseline | None]:
    """The baseline of each rollout of a group; None for a rollout without a reward.

    The baseline is the mean of all known rewards or, with `leave_one_out`, of the other rollouts' rewards. `by_deviation` divides
    advantages by the population standard deviation. A rollout's squared deviation is the average over its reward and its calls' rewards
    (`of_calls`, by rollout): no call's advantage exceeds √(rollouts · rewards of its rollout). The result doesn't depend on the order of
    the rewards, to the last bit. If all rewards are equal, advantages are 0.
    """
    known = np.sort(np.array([reward for reward in rewards if reward is not None], dtype=np.float64))
    if not len(known):
        return [None] * len(rewards)
    total, others = known.sum(), len(known) - 1
    is_even = known[0] == known[-1]
    mean = float(known[0]) if is_even else float(total / len(known))
    variance = _variance(rewards, of_calls or [()] * len(rewards), mean)
    scale = math.sqrt(variance) + EPSILON if by_deviation and variance else 1.0

    def of(reward: float) -> Baseline:
        is_alone = is_even or not (leave_one_out and others)
        return Baseline(mean if is_alone else float((total - reward) / others), scale)

    return [None if reward is None else of(reward) for reward in rewards]


def _variance(rewards: Sequence[float | None], of_calls: Sequence[Sequence[float]], mean: float) -> float:
    """The variance over rollouts with a reward. Sums are exact: the order has no influence."""
    squares = [
        math.fsum((one - mean) ** 2 for one in (reward, *calls)) / (1 + len(calls))
        for reward, calls in zip(rewards, of_calls, strict=True)
        if reward is not None
    ]
    return math.fsum(squares) / len(squares)


def advantages(
    rewards: Sequence[float | None], *, by_deviation: bool = True, leave_one_out: bool = False
) -> list[float | None]:
    """The advantage of each reward, in the same order; None for a missing reward: leave such a rollout out of the batch."""
    found = baselines(rewards, by_deviation=by_deviation, leave_one_out=leave_one_out)
    return [
        None if reward is None or baseline is None else baseline.advantage(reward)
        for reward, baseline in zip(rewards, found, strict=True)
    ]
