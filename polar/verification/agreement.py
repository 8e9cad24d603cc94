"""How far recorded and scored logprobs lie apart: mean, median, p99 and largest difference over some tokens, in nats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from polar.verification.distribution import Floats

LARGEST = 9999.0
"""Stands for a difference without end: the engine gives the token no probability, or no score."""


@dataclass(frozen=True)
class Agreement:
    """|Δlogprob| over some tokens, in nats, at most LARGEST."""

    tokens: int
    mean: float
    """Without differences of LARGEST if these are a single one, or at most 1 of 100: rounding may move a token over the edge of a
    truncation."""
    median: float
    p99: float
    """99 of 100 tokens differ by no more. Of fewer than 100 tokens it is the largest difference."""
    largest: float

    @classmethod
    def of(cls, deltas: Floats) -> Self:
        """The agreement of at least one token; `deltas`: recorded minus scored, NaN for a token without a score."""
        sizes = np.sort(np.minimum(np.nan_to_num(np.abs(deltas), nan=LARGEST), LARGEST))
        tokens = len(sizes)
        finite = int(np.searchsorted(sizes, LARGEST))
        averaged = sizes[:finite] if tokens - finite <= max(1, tokens // 100) else sizes
        mean = float(averaged.mean()) if len(averaged) else 0.0
        p99 = tokens - tokens // 100 - 1
        return cls(tokens, mean, float(sizes[tokens // 2]), float(sizes[p99]), float(sizes[-1]))

    def __str__(self) -> str:
        return f"{self.tokens} tokens, |Δlogprob| median {self.median:.1e}, p99 {self.p99:.1e}, max {self.largest:.1e}"
