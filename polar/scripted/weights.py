"""The names of the weights that an engine serves, and which of them sampled a token: as vLLM tells of both.

Nothing that the scripted engine says depends on its weights. A name is text, `default` until someone gives another (`POST
/update_weight_version`); the tokens of an answer are spread evenly over the time that it took, so that an update in between parts them.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import groupby, pairwise
from typing import Final

import msgspec

FIRST: Final = "default"
REMEMBERED: Final = 10_000
"""Updates; an answer spans few."""


class NamedSpan(msgspec.Struct, frozen=True):
    """Sampled tokens `[start, end)` of an answer are of the weights of this name."""

    version: str
    start: int
    end: int


class Weights:
    """What was served since when, on one clock, in seconds."""

    def __init__(self) -> None:
        self._updates: deque[tuple[float, str]] = deque([(-math.inf, FIRST)], maxlen=REMEMBERED)

    @property
    def name(self) -> str:
        """Of those served now."""
        return self._updates[-1][1]

    def update(self, name: str, at: float) -> None:
        """Others are served from `at` on, which is no earlier than the last update."""
        self._updates.append((at, name))

    def spans(self, began: float, ended: float, tokens: int) -> list[NamedSpan]:
        """Of an answer of so many tokens: ascending, without gaps, over all of them; a name follows another."""
        # Of updates between which nothing was sampled the last counts.
        starts = {_token(at, began, ended, tokens): name for at, name in self._updates}
        by_name = groupby(starts.items(), key=lambda start: start[1])
        found = [(next(run)[0], name) for name, run in by_name]
        return [
            NamedSpan(name, start, end) for (start, name), (end, _) in pairwise([*found, (tokens, "")]) if start < end
        ]


def _token(at: float, began: float, ended: float, tokens: int) -> int:
    """The first one that was sampled at an instant or later: token i is at `began` and i of `tokens` parts of the time to `ended`."""
    if at <= began or ended <= began:
        return 0 if at <= began else tokens
    return min(tokens, math.ceil((at - began) / (ended - began) * tokens))
