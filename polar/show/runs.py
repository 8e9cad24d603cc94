"""A trace's tokens as runs: neighbours that were read, or sampled by one call, and are trained or not for one reason.

Invariant: a trace's runs, one after the other, are its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from topics.types.tokens import Ids, Logprobs, unpack_ids, unpack_logprobs
from topics.types.trajectory import Node, Trace, Trajectory, path

ELSEWHERE = "trained in another trace"


@dataclass(frozen=True)
class Run:
    """Tokens of one kind."""

    start: int
    """Position of the first in its trace."""
    ids: Ids
    call_id: str | None
    """Of the call that sampled them; None: the model only read them."""
    is_trained: bool
    """In this trace."""
    why_not: str | None
    """Sampled tokens that aren't: a reason code, or that another trace trains them."""
    logprobs: Logprobs | None
    """As many as `ids`; None where they were read, or the engine gave none that fit."""
    is_repeated: bool
    """They stand in a trace before this one, too."""


def runs(trajectory: Trajectory, trace: Trace) -> list[Run]:
    trained = set(trace.trains)
    before = trajectory.traces[: trajectory.traces.index(trace)]
    repeated = {index for earlier in before for index in path(trajectory, earlier.leaf)}

    def kind(index: int) -> tuple[int | None, bool, str | None, bool]:
        node = trajectory.nodes[index]
        why_not = None if node.call is None or index in trained else node.masked or ELSEWHERE
        return node.call, index in trained, why_not, index in repeated

    found: list[Run] = []
    at = 0
    for (call, is_trained, why_not, is_repeated), group in groupby(path(trajectory, trace.leaf), key=kind):
        nodes = [trajectory.nodes[index] for index in group]
        ids = np.concatenate([unpack_ids(node.tokens) for node in nodes])
        call_id = None if call is None else trajectory.calls[call].call_id
        found.append(Run(at, ids, call_id, is_trained, why_not, _logprobs(nodes), is_repeated))
        at += len(ids)
    return found


def _logprobs(nodes: list[Node]) -> Logprobs | None:
    given = [unpack_logprobs(node.logprobs) for node in nodes if node.logprobs is not None]
    return np.concatenate(given) if len(given) == len(nodes) else None
