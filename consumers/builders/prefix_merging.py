"""`prefix_merging`: one trace per leaf of the token tree; each sampled token is trained in exactly one trace.

A leaf is the end of a trainable call that no other trainable call continues. A path of masked calls alone (a side call, an unused
answer) makes no trace; it stays in the tree, counted by its reason. Traces are ordered longest first. If branches share sampled
tokens, the first kept trace with these tokens trains them. If the reward is for some calls only, their traces come first, so that
none of their tokens is trained without the reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from consumers.builders.base import BuiltFrom
from consumers.token_tree.assembly import trace, trained_tokens, trajectory
from consumers.token_tree.credit import credited
from consumers.token_tree.tree import TokenTree, grow
from topics.types.building import options
from topics.types.tokens import count
from topics.types.trajectory import ROOT, Trace, Trajectory


class PrefixMerging:
    """A `Builder`."""

    def __init__(self, **config: Any) -> None:
        """See `topics.types.building.MergingOptions`."""
        self._options = options("prefix_merging", config)

    def build(self, session: BuiltFrom) -> Trajectory:
        tree = grow(session.calls, session.disowned, self._options.filters, session.build.status)
        first = credited(tree, self._options, set(tree.trainable())) or frozenset()
        least = self._options.filters.min_trainable_tokens
        return trajectory(session, tree, _traces(session, tree, first, least), self._options)


def _traces(session: BuiltFrom, tree: TokenTree, first: Set[int], least: int) -> Iterator[Trace]:
    """Each trace trains its path up to the tokens of an earlier trace. A trace with fewer than `least` tokens leaves them to others."""
    seen: set[int] = set()
    trained: set[int] = set()
    for index in sorted(tree.trainable(), key=lambda i: (i not in first, *_longest_first(tree, i))):
        at = tree.sampled[index][-1]
        if at in seen:
            continue
        path: list[int] = []
        while at != ROOT and at not in trained:
            path.append(at)
            at = tree.nodes[at].parent
        made = trace(session, tree, index, [at for at in reversed(path) if tree.is_trainable(at)])
        seen.update(path)
        if trained_tokens(tree, made) >= least:
            trained.update(path)
        yield made


def _longest_first(tree: TokenTree, index: int) -> tuple[int, int, str]:
    """Sort key of traces; ties are broken by values that don't depend on the order of arrival."""
    call = tree.calls[index]
    tokens = call.prompt.shared + count(call.prompt.rest) + count(call.sampled)
    return (-tokens, call.received_at, call.call_id)
