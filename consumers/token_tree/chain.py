"""The hash chain over prompts, computed again from the tree: proof that a delta was resolved to the very prompt that the proxy saw.

Invariant: a position's link depends on its tokens alone. Links are kept by position, so that a prompt which extends another hashes what is
new: a session of n turns costs O(n).
"""

from __future__ import annotations

import numpy as np

from consumers.token_tree.prefixes import Run
from topics.calls.delta import BLOCK, links
from topics.types.tokens import Ids


class Chain:
    """Links of one tree's positions."""

    def __init__(self) -> None:
        self._links: dict[Run, bytes] = {}

    def link(self, position: Run) -> bytes:
        """The last link over the whole blocks of the tokens down to `position`; empty above the first block's end."""
        above: list[Run] = []
        for run in position.up():
            if run in self._links:
                last, known = self._links[run], run.end
                break
            above.append(run)
        else:
            last, known = b"", 0
        held = _last(above[-1].parent if above else position, known % BLOCK)
        for run in reversed(above):
            held = np.concatenate((held, run.ids))
            made = links(held, 0, last)
            last = made[-1] if made else last
            held = held[len(made) * BLOCK :]
            self._links[run] = last
        return last


def _last(position: Run | None, count: int) -> Ids:
    """The last `count` tokens down to `position`."""
    parts: list[Ids] = []
    while count and position is not None:
        parts.append(position.ids[-count:])
        count -= len(parts[-1])
        position = position.parent
    return np.concatenate(parts[::-1]) if parts else np.empty(0, dtype=np.int32)
