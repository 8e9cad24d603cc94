"""The hash chain over prompts, computed again from the tree: it proves that a delta was resolved to exactly the prompt that the proxy saw.

Invariant: a position's link depends on its tokens alone. Links are stored by position, so a prompt that extends another hashes only its
new tokens: a session of n turns costs O(n).
"""

from __future__ import annotations

import numpy as np

from consumers.token_tree.prefixes import Segment
from topics.calls.delta import BLOCK, links
from topics.types.tokens import Ids


class Chain:
    """Links of one tree's positions."""

    def __init__(self) -> None:
        self._links: dict[Segment, bytes] = {}

    def link(self, position: Segment) -> bytes:
        """The last link over the whole blocks of the tokens down to `position`; empty above the end of the first block."""
        unhashed: list[Segment] = []
        for segment in position.up():
            if segment in self._links:
                last, known = self._links[segment], segment.end
                break
            unhashed.append(segment)
        else:
            last, known = b"", 0
        pending = _last_ids(unhashed[-1].parent if unhashed else position, known % BLOCK)
        for segment in reversed(unhashed):
            pending = np.concatenate((pending, segment.ids))
            new = links(pending, 0, last)
            last = new[-1] if new else last
            pending = pending[len(new) * BLOCK :]
            self._links[segment] = last
        return last


def _last_ids(position: Segment | None, count: int) -> Ids:
    """The last `count` tokens down to `position`."""
    parts: list[Ids] = []
    while count and position is not None:
        parts.append(position.ids[-count:])
        count -= len(parts[-1])
        position = position.parent
    return np.concatenate(parts[::-1]) if parts else np.empty(0, dtype=np.int32)
