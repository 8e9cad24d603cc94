"""Where each call stands among the calls before it: its position in the token tree, its parent, and why it branches.

Owns those judgements, and makes them from token ids, log order, lineage headers and the proxy's clock alone. Invariants: a parent was
logged before its child, since an answer leaves the proxy after its record is acknowledged; positions are resolved from the deltas as they
stand and checked against the hash chain of what the proxy saw, so time and memory are linear in the tokens that the log holds. What is
trained is `masks.py`'s, what becomes a node is `tree.py`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set

import numpy as np

from consumers.token_tree.branches import Branch, Left, Place, Thread, request_of, thread_of
from consumers.token_tree.chain import Chain
from consumers.token_tree.divergence import end_of, left_after, left_before
from consumers.token_tree.prefixes import Run, root
from topics.types.completion import CallOutcome, Completion, TokenDelta
from topics.types.tokens import WIDTH, Ids, unpack_ids


def places(calls: Iterable[Completion], disowned: Set[str]) -> list[Place | Branch]:
    """The place of each call, by index; where it has none, why: one of `UNPLACED`.

    Disowned calls have a place, but nothing follows from them: no harness has seen their answer.
    """
    placer = _Placer(disowned)
    return [placer.place(index, call) for index, call in enumerate(calls)]


class _Placer:
    """Places calls in log order; what it remembers are the calls before."""

    def __init__(self, disowned: Set[str]) -> None:
        self._disowned = disowned
        self._root = root()
        self._chain = Chain()
        self._by_id: dict[str, Place] = {}
        self._answers: defaultdict[Run, list[Place]] = defaultdict(list)
        """Calls whose answer a harness may have seen, by where it ends."""
        self._prompts: defaultdict[Run, list[Place]] = defaultdict(list)
        """The same calls, by where their prompt ends."""
        self._ends: defaultdict[bytes, list[Place]] = defaultdict(list)
        """The same calls, by `end_of` their answer."""
        self._continued: defaultdict[Place, list[Place]] = defaultdict(list)
        """Those that continue a call."""
        self._threads: set[Thread] = set()

    def place(self, index: int, call: Completion) -> Place | Branch:
        answered = call.outcome is CallOutcome.ANSWERED
        rest, sampled = _ids(call.prompt.rest), _ids(call.sampled if answered else b"")
        if rest is None or sampled is None:
            return Branch.INVALID_TOKENS
        start = self._start(call.prompt)
        if start is None:
            return Branch.BASE_MISSING
        prompt = start.extend(rest)
        if call.prompt.chain and call.prompt.chain != self._chain.link(prompt):
            return Branch.CHAIN_DIFFERS
        parent = self._parent(prompt, call)
        left = self._left(prompt, parent)
        branch = self._branch(prompt, parent, left, call) if answered else None
        place = self._by_id[call.call_id] = Place(index, call, prompt, prompt.extend(sampled), parent, left, branch)
        if place.sampled and call.call_id not in self._disowned:
            self._remember(place)
        return place

    def _start(self, prompt: TokenDelta) -> Run | None:
        """Where a delta's `rest` begins; None where its base has no place or is too short."""
        if prompt.base is None:
            return self._root.at(prompt.shared)
        base = self._by_id.get(prompt.base)
        return None if base is None else base.end.at(prompt.shared)

    def _parent(self, prompt: Run, call: Completion) -> Place | None:
        """Of several that sampled the same tokens: one of the same thread, then the last, which is what a harness that asks again uses."""
        run = next((run for run in prompt.up() if run in self._answers), None)
        if run is None:
            return None
        thread = thread_of(call)
        return max(self._answers[run], key=lambda place: (thread_of(place.call) == thread, place.index))

    def _left(self, prompt: Run, parent: Place | None) -> Left | None:
        """The answer below the parent's that the prompt left, if any."""
        for run in prompt.up():
            if parent is not None and run is parent.end:
                break
            if run is not prompt and run in self._prompts:
                return left_after(prompt, self._prompts[run])
        return left_before(prompt, self._ends, None if parent is None else parent.end)

    def _branch(self, prompt: Run, parent: Place | None, left: Left | None, call: Completion) -> Branch | None:
        if prompt in self._prompts:
            is_retry = any(_is_retried(place.call, call) for place in self._prompts[prompt])
            return Branch.RETRY if is_retry else Branch.SIBLING
        if left is not None:
            return left.how
        if parent is not None:
            others = self._continued.get(parent, ())
            if any(call.received_at < other.call.completed_at for other in others):
                return Branch.PARALLEL
            return Branch.FORK if others else None
        if thread_of(call) in self._threads:
            return Branch.COMPACTION
        return Branch.SUBAGENT if call.kind == "subagent" else Branch.ROOT

    def _remember(self, place: Place) -> None:
        self._answers[place.end].append(place)
        self._prompts[place.prompt].append(place)
        self._ends[end_of(place)].append(place)
        if place.parent is not None:
            self._continued[place.parent].append(place)
        thread = thread_of(place.call)
        if thread is not None:
            self._threads.add(thread)


def _is_retried(earlier: Completion, call: Completion) -> bool:
    """Whether `call`, of the very same prompt, asks again for what `earlier` was asked for."""
    is_same_request = call.choice > 0 and request_of(call) == request_of(earlier)
    is_alike = thread_of(earlier) == thread_of(call) and earlier.kind == call.kind
    return is_alike and not is_same_request and earlier.completed_at <= call.received_at


def _ids(data: bytes) -> Ids | None:
    """Token ids; None where the bytes are no whole number of them, or one is negative."""
    if len(data) % WIDTH:
        return None
    ids = unpack_ids(data)
    return None if len(ids) and int(np.min(ids)) < 0 else ids
