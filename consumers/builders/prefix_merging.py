"""`prefix_merging`: one trace per leaf of the token tree, a sampled token trained in exactly one.

A leaf is the end of a trainable call that no other trainable call goes on from: what is masked alone (a side call, an answer that
went unused) makes no trace, and stays in the tree, counted by its reason. Traces stand longest first, and where branches share
sampled tokens the first that holds them trains them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from consumers.builders.assembly import trace, trajectory
from consumers.builders.base import BuiltFrom, refuse_unknown
from consumers.builders.tree import TokenTree, grow
from polar.types.errors import InputError
from polar.types.tokens import count
from polar.types.trajectory import ROOT, Trace, Trajectory


class PrefixMerging:
    """A `Builder`."""

    def __init__(self, end_of_turn_token_id: int | None = None, **unknown: Any) -> None:
        """`end_of_turn_token_id` is taken because other systems' tasks carry it, and not needed: the ids tell where turns meet."""
        refuse_unknown(unknown, known=["end_of_turn_token_id"])
        if end_of_turn_token_id is not None and type(end_of_turn_token_id) is not int:
            raise InputError(
                "builder.config.end_of_turn_token_id", end_of_turn_token_id, "must be a token id, or left out"
            )

    def build(self, session: BuiltFrom) -> Trajectory:
        tree = grow(session.calls, session.disowned)
        return trajectory(session, tree, list(_traces(session, tree)))


def _traces(session: BuiltFrom, tree: TokenTree) -> Iterator[Trace]:
    """Each path is walked up to where a longer one has been: every node is visited once."""
    seen: set[int] = set()
    for index in sorted(tree.trainable(), key=lambda i: _longest_first(tree, i)):
        at = tree.sampled[index][-1]
        if at in seen:
            continue
        trains: list[int] = []
        while at != ROOT and at not in seen:
            seen.add(at)
            node = tree.nodes[at]
            if node.call is not None and node.masked is None:
                trains.append(at)
            at = node.parent
        yield trace(session, tree, index, trains[::-1])


def _longest_first(tree: TokenTree, index: int) -> tuple[int, int, str]:
    """Order of traces; among equals by what doesn't depend on the order of arrival."""
    call = tree.calls[index]
    tokens = call.prompt.shared + count(call.prompt.rest) + count(call.sampled)
    return (-tokens, call.received_at, call.call_id)
