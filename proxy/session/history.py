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
from topics.calls.media_marks import listed, whole
from topics.types.completion import Completion, Medium, MessageDelta, TokenDelta
from topics.types.tokens import Ids, common_prefix, count, pack_ids, unpack_ids

CALLS = 4096
"""Calls whose tools are known: as many as `proxy/session/turns.py` keeps turns."""
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


class Prompt(NamedTuple):
    """A prompt in full."""

    ids: bytes
    """int32 LE."""
    media: Sequence[Medium]


class CallHistory:
    """The acknowledged calls of one claim."""

    def __init__(self) -> None:
        self._prompts = PromptIndex()
        self._messages = MessageIndex()
        self._known: dict[str, _Known] = {}

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return self._prompts.size + self._messages.size

    def transcript_delta(self, transcript: Transcript) -> TranscriptDelta:
        """A request's messages and tools, as deltas."""
        messages = self._messages.encode(transcript.messages)
        known = None if messages.base is None else self._known.get(messages.base)
        digest = NO_TOOLS if messages.base is None else known and known.tools_digest
        return TranscriptDelta(messages, None if transcript.tools_digest == digest else transcript.tools)

    def prompt_delta(self, answer: Answer, media: Sequence[Medium] = ()) -> TokenDelta:
        """An answer's prompt, as a delta."""
        return self._prompts.encode(unpack_ids(answer.prompt_ids), media)

    def media_delta(self, media: Sequence[Medium], prompt: TokenDelta) -> list[Medium]:
        """The media of a prompt, as its record lists them beside its delta."""
        return listed(media, prompt.shared, self._prompts.media(prompt.base))

    def base_of(self, transcript: Transcript) -> tuple[str | None, int]:
        """The call that begins with most of a request's messages, and how many of them."""
        return self._messages.base_of(transcript.messages)

    def media(self, call_id: str | None) -> Sequence[Medium]:
        """The media of a call's prompt; none if it was forgotten."""
        return self._prompts.media(call_id)

    def continued(self, call_id: str | None, prompt: Ids) -> int | None:
        """How many tokens of a call a prompt repeats; None if it doesn't repeat the call's whole prompt, or the call was forgotten."""
        known = None if call_id is None else self._known.get(call_id)
        tokens = None if call_id is None else self._prompts.tokens(call_id)
        if known is None or tokens is None:
            return None
        shared = common_prefix(tokens, prompt)
        return shared if shared >= known.prompt_tokens else None

    def expanded(self, record: Completion) -> Prompt | None:
        """The prompt of a call on the log; None if its base isn't known, or the record names other media than its base has."""
        prompt = record.prompt
        media = whole(record.media, prompt.shared, self._prompts.media(prompt.base))
        shared = b""
        if prompt.base is not None:
            tokens = self._prompts.tokens(prompt.base, prompt.shared)
            if tokens is None:
                return None
            shared = pack_ids(tokens)
        return None if media is None else Prompt(shared + prompt.rest, media)

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
        """Adds a call that is on the log; `prompt`, in full, and `sampled` are int32 LE, `media` are those of the whole prompt."""
        self._prompts.add(call_id, unpack_ids(prompt), unpack_ids(sampled), media)
        self._messages.add(call_id, transcript.messages, answer)
        if len(self._known) >= CALLS:
            self._known = {}
        self._known[call_id] = _Known(transcript.tools_digest, count(prompt))
