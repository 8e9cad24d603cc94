"""Each call's tokens, out of a trajectory's token tree, and what becomes of those that it sampled.

Pure. A call has tokens here if the tree has a place for them: not without an answer, and not if the builder couldn't expand its prompt.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from topics.types.tokens import Ids, Logprobs, count, unpack_ids, unpack_logprobs
from topics.types.trajectory import Trajectory, path


@dataclass(frozen=True)
class Use:
    """Sampled tokens `[start, end)` of a call: trained in one trace, or masked with a reason."""

    start: int
    end: int
    trace_id: str | None
    """None: they are trained in no trace."""
    masked: str | None
    """Reason code; None: they are trained."""


@dataclass(frozen=True)
class CallTokens:
    """The tokens of one call."""

    prompt: Ids
    """int32 [n]"""
    sampled: Ids
    """int32 [m], m > 0"""
    logprobs: Logprobs | None
    """float32 [m]; None: the record's are not as many as the tokens, or not finite."""
    uses: list[Use]
    """Ascending, without gaps, over all of `sampled`; neighbours differ."""


def call_tokens(trajectory: Trajectory) -> dict[int, CallTokens]:
    """By index into the trajectory's calls."""
    nodes_of: dict[int, list[int]] = defaultdict(list)
    for index, node in enumerate(trajectory.nodes):
        if node.call is not None:
            nodes_of[node.call].append(index)
    traces = {index: trace.trace_id for trace in trajectory.traces for index in trace.trains}
    return {call: _tokens(trajectory, nodes, traces) for call, nodes in nodes_of.items()}


def _tokens(trajectory: Trajectory, nodes: list[int], traces: dict[int, str]) -> CallTokens:
    """`nodes`: the call's, which lie one after another on one path."""
    before = path(trajectory, trajectory.nodes[nodes[0]].parent)
    nodes_in_order = [trajectory.nodes[index] for index in nodes]
    uses: list[Use] = []
    start = 0
    for index, node in zip(nodes, nodes_in_order, strict=True):
        end = start + count(node.tokens)
        trace = traces.get(index)
        if uses and (uses[-1].trace_id, uses[-1].masked) == (trace, node.masked):
            uses[-1] = Use(uses[-1].start, end, trace, node.masked)
        else:
            uses.append(Use(start, end, trace, node.masked))
        start = end
    sampled = unpack_ids(b"".join(node.tokens for node in nodes_in_order))
    logprobs = np.concatenate([unpack_logprobs(node.logprobs or b"") for node in nodes_in_order])
    is_usable = len(logprobs) == len(sampled) and bool(np.isfinite(logprobs).all())
    return CallTokens(
        prompt=unpack_ids(b"".join(trajectory.nodes[index].tokens for index in before)),
        sampled=sampled,
        logprobs=logprobs if is_usable else None,
        uses=uses,
    )
