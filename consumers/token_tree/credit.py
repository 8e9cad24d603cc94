"""The calls that a session's reward is credited to, if the task credits only some of them.

Owns the definition of the main agent's chain. It goes by kinds, lineage headers and the tree, and credits nothing by guess: if no
header shows a compaction, the chain begins after it.
"""

from __future__ import annotations

from collections.abc import Set

from consumers.token_tree.tree import TokenTree
from topics.calls.threads import thread_of
from topics.types.building import Options


def credited(tree: TokenTree, options: Options, trained: Set[int]) -> Set[int] | None:
    """Indexes of the calls that the session's reward is for; None for all. At least one `trained` call is among them, if there is any."""
    if options.rewards == "all":
        return None
    last = _last(tree, trained)
    if last is None:
        return frozenset()
    return frozenset([last]) if options.rewards == "leaf" else _chain(tree, last)


def _last(tree: TokenTree, trained: Set[int]) -> int | None:
    """The main agent's trained call that was received last; without one, the last trained call of any kind."""
    main = [index for index in trained if tree.calls[index].kind == "main"]
    return max(
        main or trained, key=lambda index: (tree.calls[index].received_at, tree.calls[index].call_id), default=None
    )


def _chain(tree: TokenTree, last: int) -> Set[int]:
    """The calls that led to `last`: its parents, the calls whose answers it diverges from, and the calls before a compaction."""
    by_id = {call.call_id: index for index, call in enumerate(tree.calls)}
    chain: set[int] = set()
    at: int | None = last
    while at is not None:
        chain.add(at)
        before = tree.diverged_from[at] or tree.parents[at]
        at = by_id[before] if before is not None else _last_of_thread(tree, at)
    return chain


def _last_of_thread(tree: TokenTree, index: int) -> int | None:
    """The newest earlier call of the same thread with another prompt: the call before a compaction. None if no header shows one.

    A call with the same prompt is a retry after the compaction.
    """
    thread = thread_of(tree.calls[index].lineage)
    if thread is None:
        return None
    prompt = _prompt(tree, index)
    earlier = (
        at for at in range(index - 1, -1, -1) if tree.sampled[at] and thread_of(tree.calls[at].lineage) == thread
    )
    return next((at for at in earlier if _prompt(tree, at) != prompt), None)


def _prompt(tree: TokenTree, index: int) -> int:
    """The node where the prompt of a call that sampled ends."""
    return tree.nodes[tree.sampled[index][0]].parent
