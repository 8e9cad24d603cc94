"""How far recorded and scored logprobs lie apart: median, p99 and largest difference over some tokens, in nats."""

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
    median: float
    p99: float
    """99 of 100 tokens differ by no more. Of fewer than 100 tokens it is the largest difference."""
    largest: float

    @classmethod
    def of(cls, deltas: Floats) -> Self:
        """The agreement of at least one token; `deltas`: recorded minus scored, NaN for a token without a score."""
        sizes = np.minimum(np.nan_to_num(np.abs(deltas), nan=LARGEST), LARGEST)
        return cls(len(sizes), *(float(one) for one in np.quantile(sizes, [0.5, 0.99, 1.0], method="higher")))

    @property
    def figures(self) -> tuple[float, float, float]:
        """Median, p99 and largest difference."""
        return self.median, self.p99, self.largest

    def __str__(self) -> str:
        return f"{self.tokens} tokens, |Δlogprob| median {self.median:.1e}, p99 {self.p99:.1e}, max {self.largest:.1e}"
