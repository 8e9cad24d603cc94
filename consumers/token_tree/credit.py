"""Which calls of a session its reward is credited to, where that isn't all of them.

Owns what "the main agent's chain" is. Judged by kinds, lineage headers and the tree: nothing is credited by guess, so that after a
compaction that no header tells of, the chain begins there.
"""

from __future__ import annotations

from collections.abc import Set

from consumers.token_tree.branches import thread_of
from consumers.token_tree.tree import TokenTree
from topics.types.building import Options


def credited(tree: TokenTree, options: Options, trained: Set[int]) -> Set[int] | None:
    """Indexes of the calls that the session's reward is for; None: all. Where any call is `trained`, one of those is among them."""
    if options.rewards == "all":
        return None
    last = _last(tree, trained)
    if last is None:
        return frozenset()
    return frozenset([last]) if options.rewards == "leaf" else _chain(tree, last)


def _last(tree: TokenTree, trained: Set[int]) -> int | None:
    """The main agent's last call that is trained, by when it was asked; any kind's where there is none."""
    asked = [index for index in trained if tree.calls[index].kind == "main"] or trained
    return max(asked, key=lambda index: (tree.calls[index].received_at, tree.calls[index].call_id), default=None)


def _chain(tree: TokenTree, last: int) -> Set[int]:
    """The calls that led to `last`: those it goes on from, whether it repeats their answer or left it, and those before a compaction."""
    by_id = {call.call_id: index for index, call in enumerate(tree.calls)}
    chain: set[int] = set()
    at: int | None = last
    while at is not None:
        chain.add(at)
        before = tree.left[at] or tree.parents[at]
        at = by_id[before] if before is not None else _last_of_thread(tree, at)
    return chain


def _last_of_thread(tree: TokenTree, index: int) -> int | None:
    """The call of the same thread before its history was compacted, of another prompt since that may have been asked again; None where no
    header tells of one."""
    thread = thread_of(tree.calls[index])
    if thread is None:
        return None
    prompt = _prompt(tree, index)
    earlier = (at for at in range(index - 1, -1, -1) if tree.sampled[at] and thread_of(tree.calls[at]) == thread)
    return next((at for at in earlier if _prompt(tree, at) != prompt), None)


def _prompt(tree: TokenTree, index: int) -> int:
    """The node where the prompt of a call that sampled ends."""
    return tree.nodes[tree.sampled[index][0]].parent
