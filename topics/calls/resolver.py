"""Expands a claim's calls from the log: whole prompts and messages from the deltas of `topics/calls/delta.py`.

Invariant: an expanded prompt is the one that was written, as its hash link proves, and messages have equal values. A call that can't be
expanded raises an error that names it; callers handle the gap.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from topics.calls.delta import BLOCK, links
from topics.types.completion import Completion, TokenDelta
from topics.types.tokens import IDS, Ids, count, unpack_ids

M = TypeVar("M")


class DeltaError(ValueError):
    """A delta that can't be expanded: its base is shorter than what is shared, or the chain's last link differs."""


class BaseMissingError(DeltaError):
    """A delta whose base isn't among the earlier calls."""

    def __init__(self, call_id: str, base: str) -> None:
        self.call_id = call_id
        self.base = base
        super().__init__(f"call {call_id}: its base {base} isn't among the calls of this claim before it")


class Conversations(Generic[M]):
    """Whole message lists of a claim's calls; M is whatever a reader keeps of a message."""

    def __init__(self) -> None:
        self._whole: dict[str, list[M]] = {}

    def shared(self, call: Completion) -> list[M]:
        """The messages that a call shares with its base. Raises BaseMissingError, or DeltaError if the base is shorter."""
        base, shared = call.messages.base, call.messages.shared
        whole = [] if base is None else self._whole.get(base)
        if whole is None:
            raise BaseMissingError(call.call_id, str(base))
        if shared > len(whole):
            raise DeltaError(f"call {call.call_id}: shares {shared} messages, more than {base} has")
        return whole[:shared]

    def whole(self, call_id: str) -> list[M]:
        """All messages and the answer. Raises KeyError for a call that wasn't added."""
        return self._whole[call_id]

    def add(self, call_id: str, messages: list[M]) -> None:
        """Note a call's messages, its answer included, for calls that share them."""
        self._whole[call_id] = messages


class _Known(msgspec.Struct, frozen=True):
    """The tokens that one call adds to its bases."""

    prompt: TokenDelta
    tokens: Ids
    """`prompt.rest`, then the sampled tokens."""
    links: list[bytes]
    """Hash links of the blocks that end within `tokens`."""


class Resolver:
    """Expands the calls of one claim, added in log order; memory is linear in the tokens that they add."""

    def __init__(self) -> None:
        self._calls: dict[str, _Known] = {}
        self._messages: Conversations[msgspec.Raw] = Conversations()
        self._answered: set[str] = set()

    def add(self, call: Completion) -> None:
        """Add a call, unless its id is known.

        Raises BaseMissingError where a base wasn't added, DeltaError where the deltas or the chain don't fit; the call stays unknown then.
        """
        if call.call_id in self._calls:
            return
        if call.prompt.shared > self._length(call.call_id, call.prompt.base):
            raise DeltaError(
                f"call {call.call_id}: shares {call.prompt.shared} tokens, more than {call.prompt.base} has"
            )
        messages = self._messages.shared(call) + msgspec.json.decode(call.messages.rest, type=list[msgspec.Raw])
        self._calls[call.call_id] = _Known(
            call.prompt,
            np.concatenate((unpack_ids(call.prompt.rest), unpack_ids(call.sampled))),
            self._linked(call),
        )
        if call.answer:
            self._answered.add(call.call_id)
            messages.append(msgspec.Raw(call.answer))
        self._messages.add(call.call_id, messages)

    def prompt(self, call_id: str) -> Ids:
        """The whole prompt, int32 [n]. Raises KeyError for a call that wasn't added."""
        delta = self._calls[call_id].prompt
        return self._tokens(call_id, delta.shared + count(delta.rest))

    def messages(self, call_id: str) -> list[Any]:
        """All canonical messages of the request, decoded. Raises KeyError for a call that wasn't added."""
        whole = self._messages.whole(call_id)
        return [msgspec.json.decode(message) for message in (whole[:-1] if call_id in self._answered else whole)]

    def _length(self, call_id: str, base: str | None) -> int:
        """The number of tokens of its base that a call may share."""
        if base is None:
            return 0
        known = self._calls.get(base)
        if known is None:
            raise BaseMissingError(call_id, base)
        return known.prompt.shared + len(known.tokens)

    def _tokens(self, call_id: str | None, length: int) -> Ids:
        """The first `length` tokens of a call's prompt and sampled tokens."""
        parts = [np.empty(0, dtype=IDS)]
        while length:
            assert call_id is not None, "`add` has checked that shared tokens lie within the base"
            known = self._calls[call_id]
            if length > known.prompt.shared:
                parts.append(known.tokens[: length - known.prompt.shared])
                length = known.prompt.shared
            call_id = known.prompt.base
        return np.concatenate(parts[::-1])

    def _linked(self, call: Completion) -> list[bytes]:
        """Links of the blocks that end beyond what is shared. Raises DeltaError where the prompt's last one isn't the call's."""
        delta = call.prompt
        prompt = np.concatenate((self._tokens(delta.base, delta.shared), unpack_ids(delta.rest)))
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
