"""Places each call among the calls before it: its position in the token tree, its parent, and why it branches.

The decisions use token ids, log order, lineage headers and the proxy's clock alone. Token ids are those of marked prompts, which name the
content of images (`topics/calls/media_marks.py`). Invariants: a parent is logged before its child, because an answer leaves the proxy after
its record is acknowledged. Positions are resolved from the deltas and checked against the hash chain of what the proxy saw, so time and
memory are linear in the tokens that the log holds. `masks.py` decides what is trained, `tree.py` what becomes a node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set

import numpy as np

from consumers.token_tree.branches import Divergence, PlacedCall, request_of
from consumers.token_tree.chain import Chain
from consumers.token_tree.divergence import after_prompt, before_answer, end_of
from consumers.token_tree.prefixes import Segment, root
from topics.calls.media_marks import continuation
from topics.calls.threads import Thread, thread_of
from topics.types.building import COMPACTION, TRAINED
from topics.types.completion import CallOutcome, Completion, Medium
from topics.types.token_tree import Branch
from topics.types.tokens import WIDTH, Ids, unpack_ids


def place_calls(calls: Iterable[Completion], disowned: Set[str]) -> list[PlacedCall | Branch]:
    """Each call with its place, in order; for a call without a place the reason: BASE_MISSING, INVALID_TOKENS or CHAIN_DIFFERS.

    Disowned calls have a place, but nothing continues them: no harness has seen their answer.
    """
    placer = _Placer(disowned)
    return [placer.place(index, call) for index, call in enumerate(calls)]


class _Placer:
    """Places calls in log order and indexes the calls before."""

    def __init__(self, disowned: Set[str]) -> None:
        self._disowned = disowned
        self._root = root()
        self._chain = Chain()
        self._by_id: dict[str, PlacedCall] = {}
        self._answers: defaultdict[Segment, list[PlacedCall]] = defaultdict(list)
        """Calls whose answer a harness may have seen, by where the answer ends."""
        self._prompts: defaultdict[Segment, list[PlacedCall]] = defaultdict(list)
        """The calls by the place where their prompt ends."""
        self._ends: defaultdict[bytes, list[PlacedCall]] = defaultdict(list)
        """These calls by `end_of` their answer."""
        self._children: defaultdict[PlacedCall, list[PlacedCall]] = defaultdict(list)
        """Calls by their parent."""
        self._compacted: set[Thread] = set()
        """Threads whose last compaction was followed by no work but plain continuations."""

    def place(self, index: int, call: Completion) -> PlacedCall | Branch:
        is_answered = call.outcome is CallOutcome.ANSWERED
        new_ids, sampled = _ids(call.prompt.rest), _ids(call.sampled if is_answered else b"")
        if new_ids is None or sampled is None:
            return Branch.INVALID_TOKENS
        found = self._prompt(call, new_ids)
        if isinstance(found, Branch):
            return found
        prompt, media = found
        if call.prompt.chain and call.prompt.chain != self._chain.link(prompt):
            return Branch.CHAIN_DIFFERS
        parent = self._parent(prompt, call)
        divergence = self._divergence(prompt, parent)
        branch = self._branch(prompt, parent, divergence, call) if is_answered else None
        placed = PlacedCall(index, call, prompt, prompt.extend(sampled), parent, divergence, media, branch)
        self._by_id[call.call_id] = placed
        if placed.sampled and call.call_id not in self._disowned:
            self._index(placed)
        return placed

    def _prompt(self, call: Completion, new_ids: Ids) -> tuple[Segment, Sequence[Medium]] | Branch:
        """Where a prompt ends, and its media; the reason if its base has no place, is too short, or has other media in what is shared."""
        base = None if call.prompt.base is None else self._by_id.get(call.prompt.base)
        if base is None and call.prompt.base is not None:
            return Branch.BASE_MISSING
        found = continuation(call.prompt.shared, new_ids, call.media, base.media if base else ())
        if found is None:
            return Branch.CHAIN_DIFFERS
        start = (base.end if base else self._root).at(found.shared)
        return Branch.BASE_MISSING if start is None else (start.extend(found.rest), found.media)

    def _parent(self, prompt: Segment, call: Completion) -> PlacedCall | None:
        """Of several calls that sampled the same tokens: first one of the same thread, then the last, which a harness that retries uses."""
        end = next((segment for segment in prompt.up() if segment in self._answers), None)
        if end is None:
            return None
        thread = thread_of(call.lineage)
        return max(self._answers[end], key=lambda placed: (thread_of(placed.call.lineage) == thread, placed.index))

    def _divergence(self, prompt: Segment, parent: PlacedCall | None) -> Divergence | None:
        """The divergence from an answer below the parent's, if any."""
        for segment in prompt.up():
            if parent is not None and segment is parent.end:
                break
            if segment is not prompt and segment in self._prompts:
                return after_prompt(prompt, self._prompts[segment])
        return before_answer(prompt, self._ends, None if parent is None else parent.end)

    def _branch(
        self, prompt: Segment, parent: PlacedCall | None, divergence: Divergence | None, call: Completion
    ) -> Branch | None:
        if prompt in self._prompts:
            is_retry = any(_is_retry(placed.call, call) for placed in self._prompts[prompt])
            return Branch.RETRY if is_retry else Branch.SIBLING
        if divergence is not None:
            return divergence.reason
        if parent is not None:
            others = self._children.get(parent, ())
            if any(call.received_at < other.call.completed_at for other in others):
                return Branch.PARALLEL
            if others:
                return Branch.MEDIA if _leaves_at_media(prompt, parent.end) else Branch.FORK
            return None
        if call.kind in TRAINED and thread_of(call.lineage) in self._compacted:
            return Branch.COMPACTION
        if _leaves_at_media(prompt, None):
            return Branch.MEDIA
        return Branch.SUBAGENT if call.kind == "subagent" else Branch.ROOT

    def _index(self, placed: PlacedCall) -> None:
        self._answers[placed.end].append(placed)
        self._prompts[placed.prompt].append(placed)
        self._ends[end_of(placed)].append(placed)
        if placed.parent is not None:
            self._children[placed.parent].append(placed)
        if (thread := thread_of(placed.call.lineage)) is None:
            return
        if placed.call.kind == COMPACTION:
            self._compacted.add(thread)
        elif placed.branch is not None and placed.call.kind in TRAINED:
            self._compacted.discard(thread)


def _is_retry(earlier: Completion, call: Completion) -> bool:
    """Whether `call`, which has the prompt of `earlier`, repeats the request of `earlier`."""
    is_same_request = call.choice > 0 and request_of(call) == request_of(earlier)
    is_alike = thread_of(earlier.lineage) == thread_of(call.lineage) and earlier.kind == call.kind
    return is_alike and not is_same_request and earlier.completed_at <= call.received_at


def _leaves_at_media(prompt: Segment, top: Segment | None) -> bool:
    """Whether between `top` and `prompt` another path starts with another image or audio in the place of this path's."""
    for segment in prompt.up():
        if segment is top or segment.parent is None:
            break
        first = int(segment.ids[0])
        if first < 0 and any(other < 0 for other in segment.parent.children if other != first):
            return True
    return False


def _ids(data: bytes) -> Ids | None:
    """Token ids; None if the bytes aren't a whole number of ids, or an id is negative."""
    if len(data) % WIDTH:
        return None
    ids = unpack_ids(data)
    return None if len(ids) and int(np.min(ids)) < 0 else ids
