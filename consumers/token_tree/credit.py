"""The calls that a session's reward is credited to, if the task credits only some of them.

Owns the definition of the main agent's chain. It goes by kinds, lineage headers and the tree, and credits nothing by guess: if no
header shows a compaction, the chain begins after it. A side call is never credited, even if the task trains its kind.
"""

from __future__ import annotations

from collections.abc import Set

from consumers.token_tree.tree import TokenTree
from topics.calls.threads import thread_of
from topics.types.building import COMPACTION, TRAINED, Options
from topics.types.token_tree import Branch


def credited(tree: TokenTree, options: Options, trained: Set[int]) -> Set[int] | None:
    """Indexes of the calls that the session's reward is for; None for all.

    At least one `trained` call is among them, if any is work.
    """
    if options.rewards == "all":
        return None
    last = _last(tree, trained)
    if last is None:
        return frozenset()
    return frozenset([last]) if options.rewards == "leaf" else _chain(tree, last)


def _last(tree: TokenTree, trained: Set[int]) -> int | None:
    """The main agent's trained call that was received last; without one, the last trained call that is work."""
    main = [index for index in trained if tree.calls[index].kind == "main"]
    work = main or [index for index in trained if _is_work(tree, index)]
    return max(work, key=lambda index: (tree.calls[index].received_at, tree.calls[index].call_id), default=None)


def _chain(tree: TokenTree, last: int) -> Set[int]:
    """The calls that led to `last`: its parents, the calls whose answers it diverges from, and the calls before a compaction."""
    by_id = {call.call_id: index for index, call in enumerate(tree.calls)}
    chain: set[int] = set()
    at: int | None = last
    while at is not None:
        if _is_work(tree, at):
            chain.add(at)
        before = tree.diverged_from[at] or tree.parents[at]
        at = by_id[before] if before is not None else _last_of_thread(tree, at)
    return chain


def _last_of_thread(tree: TokenTree, index: int) -> int | None:
    """The newest earlier work of a root's thread: the call before a compaction. None if no header shows one.

    The root may be the compaction itself, or a retry after it. A root that follows no compaction, as after a cleared history, begins the
    chain.
    """
    thread = thread_of(tree.calls[index].lineage)
    if thread is None:
        return None
    prompt = _prompt(tree, index)
    earlier = [
        at
        for at in range(index)
        if tree.sampled[at] and _is_work(tree, at) and thread_of(tree.calls[at].lineage) == thread
    ]
    tries = [at for at in (*earlier, index) if _prompt(tree, at) == prompt]
    if tree.calls[index].kind != COMPACTION and all(tree.branches[at] is not Branch.COMPACTION for at in tries):
        return None
    return next((at for at in reversed(earlier) if at not in tries), None)


def _is_work(tree: TokenTree, index: int) -> bool:
    return tree.calls[index].kind in TRAINED


def _prompt(tree: TokenTree, index: int) -> int:
    """The node where the prompt of a call that sampled ends."""
    return tree.nodes[tree.sampled[index][0]].parent
