"""A call's place among the calls before it: reasons for branches, and kinds of drift.

Owns the vocabulary that trajectories, the lake and people share; `placement.py` applies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from consumers.token_tree.prefixes import Segment
from topics.types.completion import Completion, Medium


class Branch(StrEnum):
    """Why a call doesn't simply continue an earlier call."""

    ROOT = "root"
    """It continues no call: a first prompt, or a history that shares no answer with any other."""
    SUBAGENT = "subagent"
    """A root whose call is a sub-agent's, as a rule of the proxy recognised it."""
    COMPACTION = "compaction"
    """The first root of a thread after a call of kind `compaction` in the same thread, as headers show: it goes on from a summary."""
    FORK = "fork"
    """An earlier call continued the same parent and had ended when this call began."""
    PARALLEL = "parallel"
    """An earlier call continued the same parent and was still running when this call began."""
    RETRY = "retry"
    """An earlier answered call of its thread has exactly the same prompt and had ended when this call began."""
    SIBLING = "sibling"
    """An earlier answered call has exactly the same prompt, but this is no retry: another sample, or another thread."""
    END_OF_TURN = "end_of_turn"
    """Its prompt repeats an answer except for the last token: the engine's end token differs from the chat template's."""
    STRIPPED = "stripped"
    """Its prompt repeats an answer with a part left out and nothing in its place, as templates do with reasoning."""
    EDITED_HISTORY = "edited_history"
    """Its prompt continues an earlier call's prompt with another answer than was sampled there: edited or rendered differently."""
    MEDIA = "media"
    """It repeats an earlier prompt up to an image or audio that differs, and nothing above says more."""
    BASE_MISSING = "base_missing"
    """Its prompt is unknown, so it has no place in the tree: see `masks.Masked`, also for the next two reasons."""
    INVALID_TOKENS = "invalid_tokens"
    CHAIN_DIFFERS = "chain_differs"


class Drift(StrEnum):
    """How faithfully a call's prompt repeats what was sampled before it; counted for sampled calls that have a history."""

    CLEAN = "clean"
    """It extends its parent's prompt and sampled tokens exactly, as the engine rendered it."""
    REALIGN = "realign"
    """It extends them exactly, because the proxy replaced a different rendering by the sampled tokens."""
    FORK = "fork"
    """It diverges from an answer: a branch starts, and the part of the answer that it doesn't repeat is trained on another trace."""
    QUARANTINE = "quarantine"
    """Its record can't be trusted: no place in the tree, another prompt than the engine read, or unusable logprobs. Its sampled tokens are
    masked."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedCall:
    """A call and its position in the token tree."""

    index: int
    """In log order."""
    call: Completion
    prompt: Segment
    """Where its prompt ends."""
    end: Segment
    """Where its sampled tokens end; `prompt` if there are none."""
    parent: PlacedCall | None
    """The call whose prompt and sampled tokens are the longest prefix of its prompt."""
    divergence: Divergence | None
    """The answer below the parent's that its prompt doesn't repeat in full; None if there is no such answer."""
    media: Sequence[Medium]
    """The images and sounds of its whole prompt."""
    branch: Branch | None
    """None for a plain continuation, and for a call that wasn't answered."""

    @property
    def sampled(self) -> bool:
        return self.end is not self.prompt


@dataclass(frozen=True, slots=True)
class Divergence:
    """A call whose answer a prompt repeats in part or not at all."""

    call: PlacedCall
    reason: Branch
    """END_OF_TURN, STRIPPED or EDITED_HISTORY."""


def request_of(call: Completion) -> str:
    """The id of the call's request. Choices after the first have the id `<request>.<choice>`."""
    return call.call_id.rpartition(".")[0] if call.choice else call.call_id
