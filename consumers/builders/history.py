"""Where each call stands among the calls before it: its position in the token tree, its parent, and why it branches.

Owns those judgements, and makes them from token ids, log order and lineage headers alone. Invariants: a parent was logged before its
child, since an answer leaves the proxy after its record is acknowledged; positions are resolved from the deltas as they stand, so
time and memory are linear in the tokens that the log holds. What is trained is `masks.py`'s, what becomes a node is `tree.py`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import StrEnum

from consumers.builders.prefixes import Run, root
from polar.types.completion import CallOutcome, Completion, TokenDelta
from polar.types.tokens import unpack_ids

PER_CALL = frozenset({"retry", "window", "request"})
"""Lineage keys that tell one call from the next, and no thread from another: its try, how often its history was compacted, its sort."""

Thread = frozenset[tuple[str, str]]


class Branch(StrEnum):
    """Why a call is no plain continuation of an earlier one."""

    ROOT = "root"
    """It continues no call: a first prompt, a sub-agent's, or a history that shares no answer with any other."""
    COMPACTION = "compaction"
    """A root, of a thread (as its headers tell) that had calls before: its history was summarised or cleared."""
    FORK = "fork"
    """An earlier call continued the same parent."""
    SIBLING = "sibling"
    """An earlier answered call has the very same prompt: a retry, or one of several samples."""
    EDITED_HISTORY = "edited_history"
    """Its prompt goes on from an earlier call's prompt, but not with what was sampled there: edited, stripped or rendered anew."""
    BASE_MISSING = "base_missing"
    """Its prompt can't be told (see `masks.Masked.BASE_MISSING`), so it has no place in the tree."""


class Drift(StrEnum):
    """How faithfully a call's prompt repeats what was sampled before it; counted for calls that have a history."""

    CLEAN = "clean"
    """It extends its parent's prompt and sampled tokens exactly."""
    REALIGN = "realign"
    """The sampled tokens were put back in place of a history rendered otherwise; a tokens engine's, none otherwise."""
    FORK = "fork"
    """It left inside an answer: a branch starts, and what was sampled before is trained on another."""
    QUARANTINE = "quarantine"
    """It can't be proven: no place in the tree, or unusable logprobs."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A call and its position in the token tree."""

    index: int
    """In log order."""
    call: Completion
    prompt: Run
    """Where its prompt ends."""
    end: Run
    """Where its sampled tokens end: `prompt` where it has none."""
    parent: Place | None
    """The call whose prompt and sampled tokens are the longest prefix of its prompt."""
    edited: bool
    """Between `parent` and here it left an answer."""
    branch: Branch | None
    """None for a plain continuation, and for a call that wasn't answered."""

    @property
    def sampled(self) -> bool:
        return self.end is not self.prompt


def thread_of(call: Completion) -> Thread | None:
    """What the harness's headers say of whose call it is; None where they say nothing."""
    told = frozenset(item for item in (call.lineage or {}).items() if item[0] not in PER_CALL)
    return told or None


def places(calls: Iterable[Completion], disowned: Set[str]) -> list[Place | None]:
    """The place of each call, by index; None where its prompt can't be told.

    Disowned calls have a place, but nothing follows from them: no harness has seen their answer.
    """
    placer = _Placer(disowned)
    return [placer.place(index, call) for index, call in enumerate(calls)]


class _Placer:
    """Places calls in log order; what it remembers are the calls before."""

    def __init__(self, disowned: Set[str]) -> None:
        self._disowned = disowned
        self._root = root()
        self._by_id: dict[str, Place] = {}
        self._answers: defaultdict[Run, list[Place]] = defaultdict(list)
        """Calls whose answer a harness may have seen, by where it ends."""
        self._prompts: set[Run] = set()
        """Where those calls' prompts end."""
        self._continued: set[Place] = set()
        self._threads: set[Thread] = set()

    def place(self, index: int, call: Completion) -> Place | None:
        start = self._start(call.prompt)
        if start is None:
            return None
        answered = call.outcome is CallOutcome.ANSWERED
        prompt = start.extend(unpack_ids(call.prompt.rest))
        parent, edited = self._parent(prompt, call)
        branch = self._branch(prompt, parent, edited, call) if answered else None
        end = prompt.extend(unpack_ids(call.sampled)) if answered else prompt
        place = self._by_id[call.call_id] = Place(index, call, prompt, end, parent, edited, branch)
        if place.sampled and call.call_id not in self._disowned:
            self._remember(place)
        return place

    def _start(self, prompt: TokenDelta) -> Run | None:
        """Where a delta's `rest` begins; None where its base has no place or is too short."""
        if prompt.base is None:
            return self._root.at(prompt.shared)
        base = self._by_id.get(prompt.base)
        return None if base is None else base.end.at(prompt.shared)

    def _parent(self, prompt: Run, call: Completion) -> tuple[Place | None, bool]:
        """The parent, and whether a deeper call's prompt was extended with another answer than its own.

        Of several that sampled the same tokens: one of the same thread, then the last, which is what a harness that asks again uses.
        """
        thread = thread_of(call)
        edited = False
        for run in prompt.up():
            edited = edited or (run is not prompt and run in self._prompts)
            if run in self._answers:
                return max(self._answers[run], key=lambda place: (thread_of(place.call) == thread, place.index)), edited
        return None, edited

    def _branch(self, prompt: Run, parent: Place | None, edited: bool, call: Completion) -> Branch | None:
        if prompt in self._prompts:
            return Branch.SIBLING
        if edited:
            return Branch.EDITED_HISTORY
        if parent is not None:
            return Branch.FORK if parent in self._continued else None
        return Branch.COMPACTION if thread_of(call) in self._threads else Branch.ROOT

    def _remember(self, place: Place) -> None:
        self._answers[place.end].append(place)
        self._prompts.add(place.prompt)
        if place.parent is not None:
            self._continued.add(place.parent)
        thread = thread_of(place.call)
        if thread is not None:
            self._threads.add(thread)
