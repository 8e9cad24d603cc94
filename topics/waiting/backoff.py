"""Pauses between the tries of an operation that keeps failing. How many tries there are is the caller's decision."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Pauses that grow from `first_s` by `factor` up to `longest_s`, each shorter or longer by up to the share `jitter`."""

    first_s: float
    longest_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def pause_s(self, failures: int, chance: float = 0.5) -> float:
        """Seconds to wait after `failures` in a row, 1 or more. `chance`, in [0, 1), is the place within the jitter: 0.5 is its middle."""
        # The cap keeps the power small: a float overflows at the 1024th doubling.
        steps = math.ceil(math.log(self.longest_s / self.first_s, self.factor))
        pause = min(self.first_s * self.factor ** min(failures - 1, steps), self.longest_s)
        return pause * (1 - self.jitter + 2 * self.jitter * chance)
