"""A radix tree of token ids: every prompt, with what was sampled after it, each shared token held once.

Owns where a run of tokens ends and where it is cut; knows nothing of calls. Invariant: the tree depends on the token sequences
alone, not on their order nor on how their deltas were written. A `Run` stays the one that ends at its tokens' end: cutting one makes
a new run of its upper part, so that a run once handed out is a position for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topics.types.tokens import Ids, common_prefix


class Run:
    """Tokens without a branch between them, and the position at their end. Compared by identity."""

    __slots__ = ("children", "end", "ids", "parent")

    def __init__(self, parent: Run | None, ids: Ids) -> None:
        self.parent = parent
        """None: the root, which holds no tokens."""
        self.ids = ids
        """int32, not empty but at the root; a view, never a copy."""
        self.end: int = len(ids) + (parent.end if parent is not None else 0)
        """Tokens from the root to here."""
        self.children: dict[int, Run] = {}
        """By first token."""

    @property
    def start(self) -> int:
        """Tokens from the root to this run's first one."""
        return self.end - len(self.ids)

    def up(self) -> Iterator[Run]:
        """This run and those above it, without the root."""
        run = self
        while run.parent is not None:
            yield run
            run = run.parent

    def at(self, length: int) -> Run | None:
        """The position `length` tokens below the root on the path to here; None where there is none."""
        if not 0 <= length <= self.end:
            return None
        run = self
        while run.parent is not None and run.start >= length:
            run = run.parent
        return run if run.end == length else run._cut(length - run.start)

    def extend(self, ids: Ids) -> Run:
        """The position after `ids` below here; linear in `ids`, whatever lies above."""
        at = self
        while len(ids):
            child = at.children.get(int(ids[0]))
            if child is None:
                child = at.children[int(ids[0])] = Run(at, ids)
            shared = common_prefix(child.ids, ids)
            at = child if shared == len(child.ids) else child._cut(shared)
            ids = ids[shared:]
        return at

    def _cut(self, kept: int) -> Run:
        """Move the first `kept` tokens, more than none and fewer than all, to a new run above this one; returns that."""
        assert self.parent is not None, "the root has no tokens to cut"
        upper = Run(self.parent, self.ids[:kept])
        self.parent.children[int(self.ids[0])] = upper
        self.ids = self.ids[kept:]
        self.parent = upper
        upper.children[int(self.ids[0])] = self
        return upper


def root() -> Run:
    """An empty tree."""
    return Run(None, np.empty(0, dtype=np.int32))
