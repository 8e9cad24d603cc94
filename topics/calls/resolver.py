"""Expands a claim's calls from the log: whole prompts and messages out of the deltas that `topics/calls/delta.py` made.

Invariant: what comes out is the very prompt that was written, proven by the hash chain's last link, and messages of equal value; what
can't be expanded raises and names the call. Memory is linear in what the calls add. What to do about a gap is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from topics.calls.delta import BLOCK, links
from topics.types.completion import Completion, MessageDelta, TokenDelta
from topics.types.tokens import IDS, Ids, count, unpack_ids


class DeltaError(ValueError):
    """A delta that can't be expanded: its base is shorter than what is shared, or the chain's last link differs."""


class BaseMissingError(DeltaError):
    """A delta whose base isn't among the calls so far."""

    def __init__(self, call_id: str, base: str) -> None:
        self.call_id = call_id
        self.base = base
        super().__init__(f"call {call_id}: its base {base} isn't among the calls of this claim before it")


class _Known(msgspec.Struct, frozen=True):
    """One call as the log has it: what it adds to its bases."""

    prompt: TokenDelta
    tokens: Ids
    """`prompt.rest`, then what was sampled."""
    links: list[bytes]
    """Of the blocks of prompt + sampled tokens that end beyond what is shared."""
    messages: MessageDelta
    said: list[msgspec.Raw]
    """`messages.rest`, then the answer."""
    answered: bool


class Resolver:
    """Expands the calls of one claim, given in log order; memory is linear in what they add."""

    def __init__(self) -> None:
        self._calls: dict[str, _Known] = {}

    def add(self, call: Completion) -> None:
        """Take in a call; of one id the first counts.

        Raises BaseMissingError where a base wasn't added, DeltaError where the deltas or the chain don't fit; the call stays unknown then.
        """
        if call.call_id in self._calls:
            return
        if call.prompt.shared > self._length(call.call_id, call.prompt.base, "tokens"):
            raise DeltaError(
                f"call {call.call_id}: shares {call.prompt.shared} tokens, more than {call.prompt.base} has"
            )
        if call.messages.shared > self._length(call.call_id, call.messages.base, "messages"):
            raise DeltaError(
                f"call {call.call_id}: shares {call.messages.shared} messages, more than {call.messages.base} has"
            )
        said = msgspec.json.decode(call.messages.rest, type=list[msgspec.Raw])
        self._calls[call.call_id] = _Known(
            call.prompt,
            np.concatenate((unpack_ids(call.prompt.rest), unpack_ids(call.sampled))),
            self._linked(call),
            call.messages,
            [*said, msgspec.Raw(call.answer)] if call.answer else said,
            bool(call.answer),
        )

    def prompt(self, call_id: str) -> Ids:
        """The whole prompt, int32 [n]. Raises KeyError for a call that wasn't added."""
        delta = self._calls[call_id].prompt
        return self._tokens(call_id, delta.shared + count(delta.rest))

    def messages(self, call_id: str) -> list[Any]:
        """All canonical messages of the request, decoded. Raises KeyError for a call that wasn't added."""
        call = self._calls[call_id]
        length = call.messages.shared + len(call.said) - call.answered
        parts = [known.said[:own] for known, own in self._segments(call_id, length, _messages_of)]
        return [msgspec.json.decode(message) for part in parts for message in part]

    def _length(self, call_id: str, base: str | None, of: Literal["tokens", "messages"]) -> int:
        """How much of its base a call may share."""
        if base is None:
            return 0
        known = self._calls.get(base)
        if known is None:
            raise BaseMissingError(call_id, base)
        return known.prompt.shared + len(known.tokens) if of == "tokens" else known.messages.shared + len(known.said)

    def _tokens(self, call_id: str, length: int) -> Ids:
        parts = [known.tokens[:own] for known, own in self._segments(call_id, length, _prompt_of)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=IDS)

    def _segments(
        self, call_id: str | None, length: int, delta_of: Callable[[_Known], TokenDelta | MessageDelta]
    ) -> list[tuple[_Known, int]]:
        """The calls that make up a call's first `length` tokens or messages, and how many of its own each gives."""
        found = []
        while length:
            assert call_id is not None, "what is shared is within the base: `add` has seen to it"
            known = self._calls[call_id]
            delta = delta_of(known)
            if length > delta.shared:
                found.append((known, length - delta.shared))
                length = delta.shared
            call_id = delta.base
        return found[::-1]

    def _linked(self, call: Completion) -> list[bytes]:
        """Links of the blocks that end beyond what is shared. Raises DeltaError where the prompt's last one isn't the call's."""
        delta = call.prompt
        shared = self._tokens(delta.base, delta.shared) if delta.base else np.empty(0, dtype=IDS)
        prompt = np.concatenate((shared, unpack_ids(delta.rest)))
        known = delta.shared // BLOCK
        last = self._link(delta.base, known)
        made = links(np.concatenate((prompt, unpack_ids(call.sampled))), known, last)
        blocks = len(prompt) // BLOCK - known
        if delta.chain != (made[blocks - 1] if blocks else last):
            raise DeltaError(
                f"call {call.call_id}: its prompt as expanded isn't the one that was written (hash chain differs)"
            )
        return made

    def _link(self, call_id: str | None, blocks: int) -> bytes:
        """The chain's link after a call's first `blocks` blocks."""
        while blocks and call_id is not None:
            known = self._calls[call_id]
            covered = known.prompt.shared // BLOCK
            if blocks > covered:
                return known.links[blocks - covered - 1]
            call_id = known.prompt.base
        return b""


def _prompt_of(known: _Known) -> TokenDelta:
    return known.prompt


def _messages_of(known: _Known) -> MessageDelta:
    return known.messages
