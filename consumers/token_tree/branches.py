"""A call's place among the calls before it, which `placement.py` decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consumers.token_tree.prefixes import Segment
from topics.types.completion import Completion, Medium
from topics.types.token_tree import Branch


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
