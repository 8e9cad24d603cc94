"""Prompts and messages as deltas against acknowledged calls of the same claim (protocol 21); `topics/calls/resolver.py` expands them.

A call's base is the call whose prompt + sampled tokens (messages + answer) share the longest prefix with the new prompt. Invariant: the
shared part is equal token by token, message by message. Memory is linear in the new part of each call, and bounded for each index. Only
the new part of a prompt is hashed; the rest is compared once. Callers add only acknowledged calls, of one claim.
"""

from __future__ import annotations

import hashlib
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from topics.calls.media_marks import MARKS, marked, unmarked
from topics.types.completion import Medium, MessageDelta, TokenDelta
from topics.types.tokens import IDS, Ids, common_prefix, pack_ids

BLOCK = 256
"""Tokens a link of the hash chain covers."""
LINK_BYTES = 16
MAX_TOKENS = 4 * 1024 * 1024
"""Unique tokens in an index, 16 MiB, and references to media; beyond that it keeps only the newest call."""
MEDIUM_BYTES = 400
"""Estimated size of a medium in memory."""
MAX_MESSAGES = 64 * 1024


def links(prompt: Ids, known: int = 0, last: bytes = b"") -> list[bytes]:
    """Hash links of a prompt's whole blocks, after the first `known` blocks, whose last link is `last`."""
    made = []
    for start in range(known * BLOCK, len(prompt) - BLOCK + 1, BLOCK):
        last = hashlib.blake2b(last + prompt[start : start + BLOCK].tobytes(), digest_size=LINK_BYTES).digest()
        made.append(last)
    return made


class _Strand:
    """A run of tokens that grows at its end; a conversation that only grows is one strand, and an edit forks another.

    Positions count tokens from the prompt's beginning. A strand holds `[start, end)`, its parents the tokens before.
    """

    def __init__(self, parent: _Strand | None, start: int) -> None:
        # A weak reference avoids a cycle, so a claim's tokens are freed with it, without the garbage collector.
        self._parent = None if parent is None else weakref.ref(parent)
        self.start = start
        self.end = start
        self.forks: dict[tuple[int, int], _Strand] = {}
        """By the position where they leave this strand, and their first token."""
        self.ends: list[int] = []
        """Positions where calls end within this strand, ascending; the last is `end`."""
        self.calls: list[str] = []
        """Ids of the calls in `ends`."""
        self.block_links: list[bytes] = []
        """Hash links of the blocks that end within this strand."""
        self._buffer = np.empty(BLOCK, dtype=IDS)

    @property
    def parent(self) -> _Strand | None:
        return None if self._parent is None else self._parent()

    @property
    def tokens(self) -> Ids:
        return self._buffer[: self.end - self.start]

    def extend(self, tokens: Ids) -> None:
        length = self.end - self.start
        if length + len(tokens) > len(self._buffer):
            grown = np.empty(max(2 * len(self._buffer), length + len(tokens)), dtype=IDS)
            grown[:length] = self.tokens
            self._buffer = grown
        self._buffer[length : length + len(tokens)] = tokens
        self.end += len(tokens)

    def link(self, blocks: int) -> bytes:
        """The hash link after `blocks` blocks, which end at or before `end`."""
        strand = self
        while strand.parent is not None and blocks * BLOCK <= strand.start:
            strand = strand.parent
        return strand.block_links[blocks - strand.start // BLOCK - 1] if blocks else b""

    def note(self, call_id: str, end: int) -> None:
        at = bisect_left(self.ends, end)
        self.ends.insert(at, end)
        self.calls.insert(at, call_id)


class PromptIndex:
    """A claim's acknowledged calls; shared tokens are kept once. Prompts are kept as marked prompts (`media_marks.py`)."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._root = _Strand(None, 0)
        self._kept = 0
        """Tokens, and references to media."""
        self._ends: dict[str, tuple[_Strand, int]] = {}
        """Where each call ends."""
        self._media: dict[str, Sequence[Medium]] = {}
        """The media of the calls that have any."""
        self._media_kept = 0
        """Of those media, the ones that calls don't have in common."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory: a strand's buffer has room for more tokens, and a call has an end and an id."""
        return 5 * self._kept + 250 * len(self._ends) + MEDIUM_BYTES * self._media_kept

    def encode(self, prompt: Ids, media: Sequence[Medium] = ()) -> TokenDelta:
        """A prompt with its media as a delta against the added calls; in full if nothing is shared."""
        tokens = marked(prompt, media)
        strand, shared = self._find(tokens)
        known = shared // BLOCK
        last = strand.link(known)
        made = links(tokens, known, last)
        shared_ids = len(unmarked(tokens[:shared])) if media else shared
        return TokenDelta(
            rest=pack_ids(prompt[shared_ids:]),
            shared=shared_ids,
            base=strand.calls[bisect_left(strand.ends, shared)] if shared_ids else None,
            chain=made[-1] if made else last,
        )

    def add(self, call_id: str, prompt: Ids, sampled: Ids, media: Sequence[Medium] = ()) -> None:
        """Add an acknowledged call, unless it has no tokens or a known id."""
        tokens = np.concatenate((marked(prompt, media), sampled))
        if call_id in self._ends or not len(tokens):
            return
        strand, shared = self._find(tokens)
        if self._kept + len(tokens) - shared + len(media) > self._max_tokens:
            self._root, self._kept, self._ends, self._media, self._media_kept = _Strand(None, 0), 0, {}, {}, 0
            strand, shared = self._root, 0
        if shared < len(tokens):
            known = shared // BLOCK
            made = links(tokens, known, strand.link(known))
            if shared < strand.end or strand is self._root:
                fork = _Strand(strand, shared)
                strand.forks[shared, int(tokens[shared])] = fork
                strand = fork
            strand.extend(tokens[shared:])
            strand.block_links += made
            self._kept += len(tokens) - shared
        strand.note(call_id, len(tokens))
        self._ends[call_id] = strand, len(tokens)
        if media:
            self._media[call_id] = media
            self._kept += len(media)
            self._media_kept += -(-int(np.count_nonzero(tokens[shared:] < 0)) // MARKS)

    def media(self, call_id: str | None) -> Sequence[Medium]:
        """The media of a call's prompt; none of an unknown call."""
        return self._media.get(call_id, ()) if call_id is not None else ()

    def tokens(self, call_id: str, length: int | None = None) -> Ids | None:
        """The first `length` token ids (None: all) of a call's prompt and sampled tokens; None for an unknown or shorter call."""
        strand, end = self._ends.get(call_id, (None, 0))
        if strand is None:
            return None
        if call_id in self._media:
            ids = unmarked(self._beginning(strand, end))
            return None if length is not None and length > len(ids) else ids[:length]
        length = end if length is None else length
        return None if length > end else self._beginning(strand, length)

    def _beginning(self, at: _Strand, length: int) -> Ids:
        """The first `length` marked tokens down to the end of a strand."""
        strand: _Strand | None = at
        parts: list[Ids] = []
        while strand is not None:
            parts.append(strand.tokens[: max(0, length - strand.start)])
            length = min(length, strand.start)
            strand = strand.parent
        return np.concatenate(parts[::-1])

    def _find(self, tokens: Ids) -> tuple[_Strand, int]:
        """The strand where the longest known prefix ends, and the prefix's length."""
        strand, shared = self._root, 0
        while True:
            shared += common_prefix(strand.tokens, tokens[shared:])
            fork = strand.forks.get((shared, int(tokens[shared]))) if shared < len(tokens) else None
            if fork is None:
                return strand, shared
            strand = fork


class Spelled:
    """Messages in canonical spelling, which gives equal values equal bytes, and the hash link after each message."""

    __slots__ = ("links", "messages")

    def __init__(self, messages: Iterable[object] = ()) -> None:
        self.messages: list[bytes] = []
        self.links: list[bytes] = []
        for message in messages:
            self.append(spell(message))

    @property
    def link(self) -> bytes:
        """The link after the last message."""
        return self.links[-1] if self.links else b""

    def upto(self, count: int) -> Spelled:
        """The first `count` messages."""
        cut = Spelled()
        cut.messages, cut.links = self.messages[:count], self.links[:count]
        return cut

    def append(self, spelled: bytes) -> None:
        """Append a message in the spelling of `spell`."""
        self.links.append(link_after(self.link, spelled))
        self.messages.append(spelled)


def spell(message: object) -> bytes:
    """A message as canonical JSON."""
    return msgspec.json.encode(message, order="sorted")


class MessageIndex:
    """A claim's acknowledged calls by their messages; keeps a 16-byte link per message instead of the message."""

    def __init__(self, max_messages: int = MAX_MESSAGES) -> None:
        self._max_messages = max_messages
        self._calls: dict[bytes, str] = {}
        """By link, a call that begins with the messages up to that link."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return 150 * len(self._calls)

    def encode(self, spelled: Spelled) -> MessageDelta:
        """Messages as a delta against the added calls."""
        base, shared = self.base_of(spelled)
        return MessageDelta(rest=b"[" + b",".join(spelled.messages[shared:]) + b"]", shared=shared, base=base)

    def base_of(self, spelled: Spelled) -> tuple[str | None, int]:
        """The added call that begins with most of these messages, and how many; None and 0 if no call begins alike."""
        links = spelled.links
        # A known link implies those before it, and nearly all links of a growing conversation are known.
        shared = next((at for at in range(len(links), 0, -1) if links[at - 1] in self._calls), 0)
        return (self._calls[links[shared - 1]] if shared else None), shared

    def add(self, call_id: str, spelled: Spelled, answer: object | None) -> None:
        """Add an acknowledged call; `answer` is None if it has none."""
        links = spelled.links
        if answer is not None:
            links = [*links, link_after(spelled.link, spell(answer))]
        if len(self._calls) + len(links) > self._max_messages:
            self._calls = {}
        for link in reversed(links):
            if link in self._calls:
                break  # earlier links are known also
            self._calls[link] = call_id


def link_after(last: bytes, message: bytes) -> bytes:
    """The hash link after one more message in the spelling of `spell`."""
    return hashlib.blake2b(last + message, digest_size=LINK_BYTES).digest()
