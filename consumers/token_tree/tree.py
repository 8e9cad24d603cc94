"""The token tree of a session, as a trajectory carries it: nodes, each token once, and the calls that they belong to.

Owns the step from positions (`history.py`) to nodes. Invariants:

- A sampled token belongs to one call and has a node of its own: two calls that sampled the same token in the same place, as the
  answers to one prompt may, are two branches.
- A prompt shares every node that it can, sampled ones too: that is what merging is. It runs through its parent's last node.
- The nodes depend on the calls' tokens, their threads and the log order of calls that overlap in sampled tokens, on nothing else:
  calls are added by length of prompt, so that what was sampled stands before any prompt that repeats it.

Calls that sampled nothing have no nodes. Traces are the builders'.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from consumers.token_tree.branches import Branch, Drift, Place
from consumers.token_tree.history import places
from consumers.token_tree.masks import Masked, masks
from consumers.token_tree.prefixes import Run
from topics.types.building import Filters
from topics.types.completion import Completion
from topics.types.session import Status
from topics.types.tokens import WIDTH
from topics.types.trajectory import ROOT, Node


@dataclass(frozen=True)
class TokenTree:
    """Nodes, and what is known of each call; the lists but `nodes` go by index of the call, in log order."""

    nodes: list[Node]
    calls: list[Completion]
    parents: list[str | None]
    """Call ids."""
    left: list[str | None]
    """Ids of the calls whose answers the prompts left."""
    branches: list[Branch | None]
    masked: list[Masked | None]
    sampled: list[list[int]]
    """Indexes into `nodes` of what the call sampled, ascending: a path."""
    drift: Counter[Drift]

    def trainable(self) -> Iterator[int]:
        """Indexes of the calls that have tokens to train, in log order."""
        return (i for i, nodes in enumerate(self.sampled) if nodes and self.masked[i] is None)

    def is_trainable(self, node: int) -> bool:
        return self.nodes[node].call is not None and self.nodes[node].masked is None


def grow(
    records: Sequence[Completion],
    disowned: Set[str],
    filters: Filters = Filters(),  # noqa: B008 - frozen
    status: Status = Status.COMPLETED,
) -> TokenTree:
    """The tree of one session's calls, given in log order; the first record of a call id counts. `status`: how the session ended.

    Time and memory are linear in the tokens of the records.
    """
    first: dict[str, Completion] = {}
    for record in records:
        first.setdefault(record.call_id, record)
    calls = list(first.values())
    placed = places(calls, disowned)
    masked = masks(calls, placed, disowned, filters, status)
    nodes = _Nodes()
    sampled = [place for place in placed if isinstance(place, Place) and place.sampled]
    for place in sorted(sampled, key=lambda place: (place.prompt.end, place.index)):
        nodes.add(place)
    return TokenTree(
        nodes=nodes.written(masked),
        calls=calls,
        parents=[_id(place.parent) if isinstance(place, Place) else None for place in placed],
        left=[_id(place.left.call) if isinstance(place, Place) and place.left else None for place in placed],
        branches=[place.branch if isinstance(place, Place) else place for place in placed],
        masked=masked,
        sampled=[nodes.sampled.get(place, []) if isinstance(place, Place) else [] for place in placed],
        drift=Counter(d for p, m in zip(placed, masked, strict=True) if (d := _drift(p, m)) is not None),
    )


def _id(place: Place | None) -> str | None:
    return None if place is None else place.call.call_id


def _drift(place: Place | Branch, masked: Masked | None) -> Drift | None:
    """None for a call without a history: a root, or one that sampled nothing."""
    if isinstance(place, Branch) or masked is Masked.INVALID_LOGPROBS:
        return Drift.QUARANTINE
    if not place.sampled:
        return None
    if place.left is not None:
        return Drift.FORK
    if place.parent is None:
        return None
    return Drift.REALIGN if place.call.realigned else Drift.CLEAN


@dataclass(frozen=True, slots=True)
class _Copy:
    """A node in the making: the tokens of `run`, below the node `parent`."""

    parent: int
    run: Run
    sampler: Place | None
    """None where the tokens were only read."""


class _Nodes:
    """Nodes as they grow; a run of tokens has one for each call that sampled it, and others where threads part."""

    def __init__(self) -> None:
        self.sampled: dict[Place, list[int]] = {}
        self._copies: list[_Copy] = []
        self._by_run: defaultdict[Run, list[int]] = defaultdict(list)

    def add(self, place: Place) -> None:
        """Add a call's path, its sampled tokens as nodes of its own. Its parent has been added: its prompt is shorter."""
        at, missing = self._shared(place)
        for run in reversed(missing):
            at = self._copy(at, run, None)
        own = self.sampled[place] = []
        for run in _below(place.prompt, place.end):
            at = self._copy(at, run, place)
            own.append(at)

    def _shared(self, place: Place) -> tuple[int, list[Run]]:
        """The deepest node that the prompt can share, and the runs of the prompt below it, deepest first."""
        anchor = self.sampled[place.parent][-1] if place.parent is not None else ROOT
        top = place.parent.end if place.parent is not None else None
        missing: list[Run] = []
        for run in place.prompt.up():
            if run is top:
                return anchor, missing
            # Of several, as where the answers to one prompt begin alike, the newest, which is the one a harness would use.
            for copy in reversed(self._by_run.get(run, ())):
                if self._is_below(copy, anchor):
                    return copy, missing
            missing.append(run)
        return ROOT, missing

    def _is_below(self, copy: int, anchor: int) -> bool:
        """Whether the path to `copy` runs through `anchor`; indexes grow downwards."""
        while copy > anchor > ROOT:
            copy = self._copies[copy].parent
        return copy == anchor or anchor == ROOT

    def _copy(self, parent: int, run: Run, sampler: Place | None) -> int:
        self._by_run[run].append(len(self._copies))
        self._copies.append(_Copy(parent, run, sampler))
        return len(self._copies) - 1

    def written(self, masked: Sequence[Masked | None]) -> list[Node]:
        """The nodes as the trajectory holds them; `masked` by index of the call."""
        return [_node(copy, masked) for copy in self._copies]


def _node(copy: _Copy, masked: Sequence[Masked | None]) -> Node:
    tokens = copy.run.ids.tobytes()
    if copy.sampler is None:
        return Node(copy.parent, tokens)
    index, call = copy.sampler.index, copy.sampler.call
    start = (copy.run.start - copy.sampler.prompt.end) * WIDTH
    # Of a wrong length they belong to no token; a non-finite one does, and stays to be looked at.
    fitting = len(call.logprobs) == len(call.sampled)
    logprobs = call.logprobs[start : start + len(tokens)] if fitting else None
    return Node(copy.parent, tokens, logprobs, index, masked[index])


def _below(top: Run, end: Run) -> list[Run]:
    """The runs below `top` down to `end`, in reading order."""
    found: list[Run] = []
    for run in end.up():
        if run is top:
            break
        found.append(run)
    return found[::-1]
