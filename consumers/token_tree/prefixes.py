"""A radix tree of token ids: all prompts, each followed by what was sampled after it, with every shared token stored once.

Owns where a segment of tokens ends and where it is cut; knows nothing of calls. Invariant: the tree depends on the token sequences
alone, not on their order or on how their deltas were written. A `Segment` always ends at the same tokens: a cut makes a new segment
of its upper part. So a segment that was handed out stays a valid position.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topics.types.tokens import Ids, common_prefix


class Segment:
    """Tokens without a branch between them, and the position at their end. Compared by identity."""

    __slots__ = ("children", "end", "ids", "parent")

    def __init__(self, parent: Segment | None, ids: Ids) -> None:
        self.parent = parent
        """None for the root, which holds no tokens."""
        self.ids = ids
        """int32, empty only at the root; a view, never a copy."""
        self.end: int = len(ids) + (parent.end if parent is not None else 0)
        """Tokens from the root to here."""
        self.children: dict[int, Segment] = {}
        """By first token."""

    @property
    def start(self) -> int:
        """Tokens from the root to this segment's first token."""
        return self.end - len(self.ids)

    def up(self) -> Iterator[Segment]:
        """This segment and the segments above it, without the root."""
        segment = self
        while segment.parent is not None:
            yield segment
            segment = segment.parent

    def below(self, top: Segment) -> list[Segment]:
        """The segments below `top` down to here, in reading order; all from the root if `top` isn't above."""
        found: list[Segment] = []
        for segment in self.up():
            if segment is top:
                break
            found.append(segment)
        return found[::-1]

    def at(self, length: int) -> Segment | None:
        """The position `length` tokens below the root on the path to here; None if the path is shorter."""
        if not 0 <= length <= self.end:
            return None
        segment = self
        while segment.parent is not None and segment.start >= length:
            segment = segment.parent
        return segment if segment.end == length else segment._cut(length - segment.start)

    def extend(self, ids: Ids) -> Segment:
        """The position after `ids` below here; linear in `ids`, whatever lies above."""
        at = self
        while len(ids):
            child = at.children.get(int(ids[0]))
            if child is None:
                child = at.children[int(ids[0])] = Segment(at, ids)
            shared = common_prefix(child.ids, ids)
            at = child if shared == len(child.ids) else child._cut(shared)
            ids = ids[shared:]
        return at

    def _cut(self, kept: int) -> Segment:
        """Move the first `kept` tokens (not none, not all) to a new segment above this one, and return that segment."""
        assert self.parent is not None, "the root has no tokens to cut"
        upper = Segment(self.parent, self.ids[:kept])
        self.parent.children[int(self.ids[0])] = upper
        self.ids = self.ids[kept:]
        self.parent = upper
        upper.children[int(self.ids[0])] = self
        return upper


def root() -> Segment:
    """An empty tree."""
    return Segment(None, joined([]))


def joined(segments: list[Segment]) -> Ids:
    """The tokens of segments in reading order."""
    return np.concatenate([segment.ids for segment in segments]) if segments else np.empty(0, dtype=np.int32)
