"""The names of the weights that an engine serves, and which weights sampled a token, in vLLM's format.

The scripted engine's answers don't depend on weights. A name is text: `default` until `POST /update_weight_version` sets another. An
answer's tokens are spread evenly over its duration, so an update in between divides them.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import groupby, pairwise
from typing import Final

import msgspec

FIRST: Final = "default"
REMEMBERED: Final = 10_000
"""Number of updates; an answer spans few."""


class NamedSpan(msgspec.Struct, frozen=True):
    """The weights named `version` sampled the tokens `[start, end)` of an answer."""

    version: str
    start: int
    end: int


class Weights:
    """The history of served weights, with times in seconds on one clock."""

    def __init__(self) -> None:
        self._updates: deque[tuple[float, str]] = deque([(-math.inf, FIRST)], maxlen=REMEMBERED)

    @property
    def name(self) -> str:
        return self._updates[-1][1]

    def update(self, name: str, at: float) -> None:
        """Serve other weights from `at` on, which is not before the last update."""
        self._updates.append((at, name))

    def spans(self, began: float, ended: float, tokens: int) -> list[NamedSpan]:
        """The spans of an answer: ascending, without gaps, and with different names side by side."""
        # Of several updates between two tokens the last counts.
        starts = {_token(at, began, ended, tokens): name for at, name in self._updates}
        by_name = groupby(starts.items(), key=lambda start: start[1])
        found = [(next(run)[0], name) for name, run in by_name]
        return [
            NamedSpan(name, start, end) for (start, name), (end, _) in pairwise([*found, (tokens, "")]) if start < end
        ]


def _token(at: float, began: float, ended: float, tokens: int) -> int:
    """The first token sampled at the instant or later. Token i is sampled at `began + i / tokens * (ended - began)`."""
    if at <= began or ended <= began:
        return 0 if at <= began else tokens
    return min(tokens, math.ceil((at - began) / (ended - began) * tokens))
