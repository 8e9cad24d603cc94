"""GRPO's advantages, by rollout: a group's rewards against their baseline.

Invariant: a rollout counts once, however many traces it has, and one without a reward not at all: it moves no baseline and has no
advantage. Which tokens get them is `rows.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EPSILON = 1e-6
"""Of standard deviations: a spread that is next to none makes no advantage explode."""


@dataclass(frozen=True)
class Baseline:
    """What a rollout's rewards are measured against."""

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
    """One for each rollout of a group; None where it has no reward.

    The mean of the rewards there are, or of the others' with `leave_one_out`. `by_deviation`: advantages are in (population) standard
    deviations, each rollout's being that of its reward and of its calls' own (`of_calls`, by rollout) on average, so that no call's
    advantage is over √(rollouts · rewards of its rollout). The order of the rewards changes nothing, to the last bit; where all are
    equal advantages are 0.
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
    """Of rollouts with a reward; sums are exact, so that no order changes them."""
    squares = [
        math.fsum((one - mean) ** 2 for one in (reward, *calls)) / (1 + len(calls))
        for reward, calls in zip(rewards, of_calls, strict=True)
        if reward is not None
    ]
    return math.fsum(squares) / len(squares)


def advantages(
    rewards: Sequence[float | None], *, by_deviation: bool = True, leave_one_out: bool = False
) -> list[float | None]:
    """Each reward's, in the same order; None where there is no reward: such a rollout is out of the batch."""
    found = baselines(rewards, by_deviation=by_deviation, leave_one_out=leave_one_out)
    return [
        None if reward is None or baseline is None else baseline.advantage(reward)
        for reward, baseline in zip(rewards, found, strict=True)
    ]
