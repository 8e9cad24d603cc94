"""A call's place among the calls before it, in words: reason codes of branches, sorts of drift, and whose thread a call is of.

Owns the vocabulary that trajectories, the lake and people share; `history.py` judges by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from consumers.token_tree.prefixes import Run
from topics.types.completion import Completion

PER_CALL = frozenset({"retry", "window", "request"})
"""Lineage keys that tell one call from the next, and no thread from another: its try, how often its history was compacted, its sort."""

Thread = frozenset[tuple[str, str]]


class Branch(StrEnum):
    """Why a call is no plain continuation of an earlier one."""

    ROOT = "root"
    """It continues no call: a first prompt, or a history that shares no answer with any other."""
    SUBAGENT = "subagent"
    """A root whose call is a sub-agent's, as a rule of the proxy recognised it."""
    COMPACTION = "compaction"
    """A root, of a thread (as its headers tell) that had calls before: its history was summarised or cleared."""
    FORK = "fork"
    """An earlier call continued the same parent, and was over when this one was asked."""
    PARALLEL = "parallel"
    """An earlier call continued the same parent, and was still under way when this one was asked."""
    RETRY = "retry"
    """An earlier answered call of its thread has the very same prompt, and was over when this one was asked."""
    SIBLING = "sibling"
    """An earlier answered call has the very same prompt, and this is no retry of it: one of several samples, or another thread's."""
    END_OF_TURN = "end_of_turn"
    """Its prompt repeats an answer but for its last token: the engine ended the turn with another than the chat template does."""
    STRIPPED = "stripped"
    """Its prompt repeats an answer with a part left out, and nothing put in its place: as templates do with reasoning."""
    EDITED_HISTORY = "edited_history"
    """Its prompt goes on from an earlier call's prompt, but with another answer than was sampled there: edited, or rendered anew."""
    BASE_MISSING = "base_missing"
    """Its prompt can't be told, so it has no place in the tree: see `masks.Masked`, also for the next two."""
    INVALID_TOKENS = "invalid_tokens"
    CHAIN_DIFFERS = "chain_differs"


UNPLACED = frozenset({Branch.BASE_MISSING, Branch.INVALID_TOKENS, Branch.CHAIN_DIFFERS})
"""Why a call has no place."""


class Drift(StrEnum):
    """How faithfully a call's prompt repeats what was sampled before it; counted for sampled calls that have a history."""

    CLEAN = "clean"
    """It extends its parent's prompt and sampled tokens exactly, as the engine rendered it."""
    REALIGN = "realign"
    """It extends them exactly, because sampled tokens were put in place of what the engine's rendering had spelled otherwise."""
    FORK = "fork"
    """It left an answer: a branch starts, and what it doesn't repeat is trained on another."""
    QUARANTINE = "quarantine"
    """What it says can't be trusted: no place in the tree, or unusable logprobs. Its sampled tokens are masked."""


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
    left: Left | None
    """The answer that its prompt left on the way from `parent`; None: no such."""
    branch: Branch | None
    """None for a plain continuation, and for a call that wasn't answered."""

    @property
    def sampled(self) -> bool:
        return self.end is not self.prompt


@dataclass(frozen=True, slots=True)
class Left:
    """A call whose answer a prompt left, and how."""

    call: Place
    how: Branch
    """END_OF_TURN, STRIPPED or EDITED_HISTORY."""


def thread_of(call: Completion) -> Thread | None:
    """What the harness's headers say of whose call it is; None where they say nothing."""
    told = frozenset(item for item in (call.lineage or {}).items() if item[0] not in PER_CALL)
    return told or None


def request_of(call: Completion) -> str:
    """Choices after the first are named after it: `<its id>.<choice>`."""
    return call.call_id.rpartition(".")[0] if call.choice else call.call_id
