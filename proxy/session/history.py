"""An index of a claim's acknowledged calls: the bases against which its next calls are written as deltas (protocol 21).

Prompt, messages and tools each find what is on the log already. Bounded: after a call is forgotten, its content is written in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from proxy.chat import Answer, Message, Tool
from topics.calls.delta import MessageIndex, PromptIndex, Spelled
from topics.types.completion import Medium, MessageDelta, TokenDelta
from topics.types.tokens import Ids, common_prefix, count, pack_ids, unpack_ids

CALLS = 4096
"""Calls whose tools and media are known: as many as `proxy/session/turns.py` keeps turns."""
MEDIUM_BYTES = 400
"""Estimated size of a medium in memory."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages and tools of a request, spelled and hashed once for all that need them."""

    messages: Spelled
    tools: bytes
    """JSON array."""
    tools_digest: bytes


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """A transcript as the log holds it."""

    messages: MessageDelta
    tools: bytes | None
    """None: the tools of the messages' base; without a base, no tools."""


def transcript(messages: Spelled, tools: Sequence[Tool]) -> Transcript:
    """The transcript of spelled messages and tools."""
    return transcript_of(messages, _encode(tools))


def transcript_of(messages: Spelled, tools: bytes) -> Transcript:
    """As `transcript`, with tools already encoded."""
    return Transcript(messages, tools, blake2b(tools, digest_size=16).digest())


NO_TOOLS = transcript(Spelled(), []).tools_digest


def frame_of(engine: str, tools_digest: bytes, offered_tools: str | None, reasoning_effort: str | None) -> bytes:
    """Digest of everything but messages that a prompt is rendered from: engine, tools, which of them are offered, reasoning effort."""
    return blake2b(_encode((engine, offered_tools, reasoning_effort)) + tools_digest, digest_size=16).digest()


class _Known(NamedTuple):
    """What is known of a call beside its tokens and messages."""

    tools_digest: bytes
    prompt_tokens: int
    media: Sequence[Medium]


class CallHistory:
    """The acknowledged calls of one claim."""

    def __init__(self) -> None:
        self._prompts = PromptIndex()
        self._messages = MessageIndex()
        self._known: dict[str, _Known] = {}
        self._media = 0
        """Number of media in `_known`."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return self._prompts.size + self._messages.size + MEDIUM_BYTES * self._media

    def transcript_delta(self, transcript: Transcript) -> TranscriptDelta:
        """A request's messages and tools, as deltas."""
        messages = self._messages.encode(transcript.messages)
        known = None if messages.base is None else self._known.get(messages.base)
        digest = NO_TOOLS if messages.base is None else known and known.tools_digest
        return TranscriptDelta(messages, None if transcript.tools_digest == digest else transcript.tools)

    def prompt_delta(self, answer: Answer, media: Sequence[Medium] = ()) -> TokenDelta:
        """An answer's prompt, as a delta."""
        return self._prompts.encode(unpack_ids(answer.prompt_ids), media)

    def base_of(self, transcript: Transcript) -> tuple[str | None, int]:
        """The call that begins with most of a request's messages, and how many of them."""
        return self._messages.base_of(transcript.messages)

    def media(self, call_id: str | None) -> Sequence[Medium]:
        """The media of a call's prompt; none if it was forgotten."""
        known = None if call_id is None else self._known.get(call_id)
        return () if known is None else known.media

    def continued(self, call_id: str | None, prompt: Ids) -> int | None:
        """How many tokens of a call a prompt repeats; None if it doesn't repeat the call's whole prompt, or the call was forgotten."""
        known = None if call_id is None else self._known.get(call_id)
        tokens = None if call_id is None else self._prompts.tokens(call_id)
        if known is None or tokens is None:
            return None
        shared = common_prefix(tokens, prompt)
        return shared if shared >= known.prompt_tokens else None

    def expanded(self, prompt: TokenDelta) -> bytes | None:
        """A prompt of the log in full, int32 LE; None if its base isn't known."""
        if prompt.base is None:
            return prompt.rest
        shared = self._prompts.tokens(prompt.base, prompt.shared)
        return None if shared is None else pack_ids(shared) + prompt.rest

    def tokens(self, call_id: str) -> Ids | None:
        """A call's prompt and sampled tokens; None if they were forgotten."""
        return self._prompts.tokens(call_id)

    def add(
        self,
        call_id: str,
        transcript: Transcript,
        prompt: bytes,
        sampled: bytes,
        answer: Message,
        media: Sequence[Medium] = (),
    ) -> None:
        """Adds a call that is on the log; `prompt`, in full, and `sampled` are int32 LE, `media` are the prompt's."""
        self._prompts.add(call_id, unpack_ids(prompt), unpack_ids(sampled), media)
        self._messages.add(call_id, transcript.messages, answer)
        if len(self._known) >= CALLS:
            self._known, self._media = {}, 0
        self._media += len(media)
        self._known[call_id] = _Known(transcript.tools_digest, count(prompt), media)
