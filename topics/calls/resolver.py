"""Expands a claim's calls from the log: whole prompts and messages from the deltas of `topics/calls/delta.py`.

Invariant: an expanded prompt is the one that was written, as its hash link proves, and messages have equal values. A call that can't be
expanded raises an error that names it; callers handle the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from topics.calls.delta import BLOCK, links
from topics.calls.media_marks import continuation, unmarked
from topics.types.completion import Completion, Medium
from topics.types.tokens import IDS, Ids, unpack_ids

M = TypeVar("M")


class DeltaError(ValueError):
    """A delta that can't be expanded: its base is shorter than what is shared, or has other media there, or the hash chain differs."""


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
    """The marked tokens (`topics/calls/media_marks.py`) that one call adds to its bases."""

    base: str | None
    shared: int
    """Marked tokens of the base."""
    tokens: Ids
    """Those of the prompt that follow, then the sampled tokens."""
    prompt_length: int
    media: Sequence[Medium]
    """Those of the whole prompt."""
    links: list[bytes]
    """Hash links of the blocks that end within `tokens`."""


class Resolver:
    """Expands the calls of one claim, added in log order; memory is linear in the tokens that they add."""

    def __init__(self) -> None:
        self._calls: dict[str, _Known] = {}
        self._messages: Conversations[msgspec.Raw] = Conversations()
        self._answered: set[str] = set()
        self._tools: dict[str, bytes] = {}
        """JSON of the tools of each call that was offered any."""

    def add(self, call: Completion) -> None:
        """Add a call, unless its id is known.

        Raises BaseMissingError where a base wasn't added, DeltaError where the deltas or the chain don't fit; the call stays unknown then.
        """
        if call.call_id in self._calls:
            return
        known = self._known(call)
        messages = self._messages.shared(call) + msgspec.json.decode(call.messages.rest, type=list[msgspec.Raw])
        self._calls[call.call_id] = known
        if call.answer:
            self._answered.add(call.call_id)
            messages.append(msgspec.Raw(call.answer))
        self._messages.add(call.call_id, messages)
        tools = self._tools.get(call.messages.base or "") if call.tools is None else call.tools
        if tools is not None:
            self._tools[call.call_id] = tools

    def prompt(self, call_id: str) -> Ids:
        """The whole prompt, int32 [n]. Raises KeyError for a call that wasn't added."""
        known = self._calls[call_id]
        tokens = self._tokens(call_id, known.prompt_length)
        return unmarked(tokens) if known.media else tokens

    def messages(self, call_id: str) -> list[Any]:
        """All canonical messages of the request, decoded. Raises KeyError for a call that wasn't added."""
        whole = self._messages.whole(call_id)
        return [msgspec.json.decode(message) for message in (whole[:-1] if call_id in self._answered else whole)]

    def tools(self, call_id: str) -> list[Any]:
        """The definitions of the tools that the request offers, decoded."""
        return msgspec.json.decode(self._tools.get(call_id, b"[]"), type=list[Any])

    def _known(self, call: Completion) -> _Known:
        """Raises BaseMissingError, and DeltaError where the delta or the prompt's last hash link doesn't fit."""
        delta = call.prompt
        base = None if delta.base is None else self._calls.get(delta.base)
        if base is None and delta.base is not None:
            raise BaseMissingError(call.call_id, delta.base)
        found = continuation(delta.shared, unpack_ids(delta.rest), call.media, base.media if base else ())
        if found is None:
            raise DeltaError(f"call {call.call_id}: has other images or audio than {delta.base} in what it shares")
        if found.shared > (base.shared + len(base.tokens) if base else 0):
            raise DeltaError(f"call {call.call_id}: shares {delta.shared} tokens, more than {delta.base} has")
        prompt = np.concatenate((self._tokens(delta.base, found.shared), found.rest))
        sampled = unpack_ids(call.sampled)
        covered = found.shared // BLOCK
        last = self._link(delta.base, covered)
        made = links(np.concatenate((prompt, sampled)), covered, last)
        blocks = len(prompt) // BLOCK - covered
        if delta.chain != (made[blocks - 1] if blocks else last):
            raise DeltaError(
                f"call {call.call_id}: its prompt as expanded isn't the one that was written (hash chain differs)"
            )
        tokens = np.concatenate((found.rest, sampled))
        return _Known(delta.base, found.shared, tokens, len(prompt), found.media, made)

    def _tokens(self, call_id: str | None, length: int) -> Ids:
        """The first `length` marked tokens of a call's prompt and sampled tokens."""
        parts = [np.empty(0, dtype=IDS)]
        while length:
            assert call_id is not None, "`add` has checked that shared tokens lie within the base"
            known = self._calls[call_id]
            if length > known.shared:
                parts.append(known.tokens[: length - known.shared])
                length = known.shared
            call_id = known.base
        return np.concatenate(parts[::-1])

    def _link(self, call_id: str | None, blocks: int) -> bytes:
        """The chain's link after a call's first `blocks` blocks."""
        while blocks and call_id is not None:
            known = self._calls[call_id]
            covered = known.shared // BLOCK
            if blocks > covered:
                return known.links[blocks - covered - 1]
            call_id = known.base
        return b""
