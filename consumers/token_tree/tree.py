"""The token tree of a session, as a trajectory carries it: nodes, with each token once, and the calls that they belong to.

Owns the step from positions (`placement.py`) to nodes. Invariants:

- A sampled token belongs to one call and has a node of its own. Two calls that sampled the same token in the same place, for example
  two answers to one prompt, are two branches.
- A prompt shares every node that it can, sampled nodes included: this is merging. Its path runs through its parent's last node.
- The nodes depend only on the calls' tokens, their threads and the log order of calls that overlap in sampled tokens. Calls are added
  by length of prompt, so sampled tokens come before any prompt that repeats them.

Calls that sampled nothing have no nodes. Builders make the traces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from consumers.token_tree.branches import PlacedCall
from consumers.token_tree.masks import masks
from consumers.token_tree.placement import place_calls
from consumers.token_tree.prefixes import Segment
from topics.calls.media_marks import first_tokens, unmarked
from topics.types.building import Filters
from topics.types.completion import Completion, Medium
from topics.types.session import Status
from topics.types.token_tree import Branch, Drift, Masked
from topics.types.tokens import WIDTH
from topics.types.trajectory import ROOT, Node


@dataclass(frozen=True)
class TokenTree:
    """Nodes and calls. All lists except `nodes` are indexed by call, in log order."""

    nodes: list[Node]
    calls: list[Completion]
    parents: list[str | None]
    """Call ids."""
    diverged_from: list[str | None]
    """Ids of the calls whose answers the prompts diverge from."""
    branches: list[Branch | None]
    masked: list[Masked | None]
    media: list[int]
    """Images and sounds in the prompts; of a call without a place, those that its record lists."""
    sampled: list[list[int]]
    """Indexes into `nodes` of the call's sampled tokens, ascending: a path."""
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
    """The tree of one session's calls, in log order; the first record of a call id counts. `status`: how the session ended.

    Time and memory are linear in the tokens of the records.
    """
    first: dict[str, Completion] = {}
    for record in records:
        first.setdefault(record.call_id, record)
    calls = list(first.values())
    placed = place_calls(calls, disowned)
    masked = masks(calls, placed, disowned, filters, status)
    nodes = _Nodes(calls)
    found = [each if isinstance(each, PlacedCall) else None for each in placed]
    sampled = [place for place in found if place is not None and place.sampled]
    for place in sorted(sampled, key=lambda place: (place.prompt.end, place.index)):
        nodes.add(place)
    return TokenTree(
        nodes=nodes.written(masked),
        calls=calls,
        parents=[place.parent.call.call_id if place and place.parent else None for place in found],
        diverged_from=[place.divergence.call.call.call_id if place and place.divergence else None for place in found],
        branches=[each.branch if isinstance(each, PlacedCall) else each for each in placed],
        masked=masked,
        media=[len(place.media if place else call.media) for place, call in zip(found, calls, strict=True)],
        sampled=[nodes.sampled.get(place, []) if place else [] for place in found],
        drift=Counter(d for p, m in zip(placed, masked, strict=True) if (d := _drift(p, m)) is not None),
    )


def _drift(place: PlacedCall | Branch, masked: Masked | None) -> Drift | None:
    """None for a call without a history (a root) and for a call that sampled nothing."""
    if isinstance(place, Branch) or masked in (Masked.PROMPT_DIFFERS, Masked.INVALID_LOGPROBS):
        return Drift.QUARANTINE
    if not place.sampled:
        return None
    if place.divergence is not None:
        return Drift.FORK
    if place.parent is None:
        return None
    return Drift.REALIGN if place.call.realigned else Drift.CLEAN


@dataclass(frozen=True, slots=True)
class _Copy:
    """A future node: the tokens of `segment`, below the node `parent`."""

    parent: int
    segment: Segment
    place: PlacedCall
    """The first call whose path runs through it."""
    is_sampled: bool
    """Whether that call sampled the tokens; otherwise they are only part of prompts."""


class _Nodes:
    """The nodes so far. A segment has one node for each call that sampled it, and more nodes where threads part.

    A medium begins in the node with the first token behind its marks: there all calls of the path have the same media, wherever the
    segments above were cut. So a segment that holds marks alone has no node.
    """

    def __init__(self, calls: Iterable[Completion]) -> None:
        self._blobs = {medium.digest: medium.blob for call in calls for medium in call.media if medium.blob is not None}
        """A medium that was stored for one call is stored for all."""
        self._media: dict[PlacedCall, list[tuple[int, Medium]]] = {}
        """The media of the calls, as `first_tokens` gives them."""
        self.sampled: dict[PlacedCall, list[int]] = {}
        self._copies: list[_Copy] = []
        self._by_segment: defaultdict[Segment, list[int]] = defaultdict(list)

    def add(self, place: PlacedCall) -> None:
        """Add a call's path, with nodes of its own for its sampled tokens. Its parent was added before: the parent's prompt is shorter."""
        self._media[place] = first_tokens(place.media, place.prompt.end)
        at, missing = self._shared(place)
        for segment in reversed(missing):
            at = self._copy(at, segment, place, is_sampled=False)
        sampled = self.sampled[place] = []
        for segment in place.end.below(place.prompt):
            at = self._copy(at, segment, place, is_sampled=True)
            sampled.append(at)

    def _shared(self, place: PlacedCall) -> tuple[int, list[Segment]]:
        """The deepest node that the prompt can share, and the prompt's segments below it, deepest first."""
        anchor = self.sampled[place.parent][-1] if place.parent is not None else ROOT
        top = place.parent.end if place.parent is not None else None
        missing: list[Segment] = []
        for segment in place.prompt.up():
            if segment is top:
                return anchor, missing
            # Several nodes fit if answers to one prompt begin alike: the newest is the one that a harness would use.
            for copy in reversed(self._by_segment.get(segment, ())):
                if self._is_below(copy, anchor):
                    return copy, missing
            missing.append(segment)
        return ROOT, missing

    def _is_below(self, copy: int, anchor: int) -> bool:
        """Whether the path to `copy` runs through `anchor`; indexes grow downwards."""
        while copy > anchor > ROOT:
            copy = self._copies[copy].parent
        return copy == anchor or anchor == ROOT

    def _copy(self, parent: int, segment: Segment, place: PlacedCall, *, is_sampled: bool) -> int:
        if _is_marks(segment):
            return parent
        self._by_segment[segment].append(len(self._copies))
        self._copies.append(_Copy(parent, segment, place, is_sampled))
        return len(self._copies) - 1

    def written(self, masked: Sequence[Masked | None]) -> list[Node]:
        """The nodes as the trajectory holds them; `masked` by index of the call."""
        return [_node(copy, masked, self._media_of(copy)) for copy in self._copies]

    def _media_of(self, copy: _Copy) -> list[Medium]:
        """The media that begin in a node, with their positions in it."""
        segment, media = copy.segment, self._media[copy.place]
        first = bisect_left(media, segment.start, key=_index)
        found = media[first : bisect_left(media, segment.end, key=_index)]
        if not found:
            return []
        ids = np.cumsum(segment.ids >= 0)
        return [
            replace(medium, position=int(ids[at - segment.start]) - 1, blob=self._blobs.get(medium.digest))
            for at, medium in found
        ]


def _index(first_token: tuple[int, Medium]) -> int:
    return first_token[0]


def _node(copy: _Copy, masked: Sequence[Masked | None], media: list[Medium]) -> Node:
    tokens = unmarked(copy.segment.ids) if copy.place.media else copy.segment.ids
    if not copy.is_sampled:
        return Node(copy.parent, tokens.tobytes(), media=media)
    index, call = copy.place.index, copy.place.call
    start = (copy.segment.start - copy.place.prompt.end) * WIDTH
    # If the lengths differ, no logprob belongs to a token. A logprob that isn't finite does, and stays for inspection.
    has_all = len(call.logprobs) == len(call.sampled)
    logprobs = call.logprobs[start : start + len(tokens) * WIDTH] if has_all else None
    return Node(copy.parent, tokens.tobytes(), logprobs, index, masked[index], media=media)


def _is_marks(segment: Segment) -> bool:
    """Whether a segment holds no token ids."""
    return int(segment.ids[-1]) < 0 and bool((segment.ids < 0).all())
