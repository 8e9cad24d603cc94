"""What a claim's acknowledged calls were: the bases of its next ones (protocol 21).

Prompt, messages and tools each find what the log has already. Bounded; what was forgotten is written in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from proxy.chat import Answer, Message, Tool
from topics.calls.delta import MessageIndex, PromptIndex, Spelled
from topics.types.completion import MessageDelta, TokenDelta
from topics.types.tokens import Ids, pack_ids, unpack_ids

CALLS = 4096
"""Calls whose tools are known."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a request tells the model, spelled and hashed once for all that need it."""

    messages: Spelled
    tools: bytes
    """JSON array."""
    tools_digest: bytes


@dataclass(frozen=True, slots=True)
class TranscriptDelta:
    """A transcript as the log takes it."""

    messages: MessageDelta
    tools: bytes | None
    """None: those of the messages' base; without a base, none."""


def transcript(messages: Spelled, tools: Sequence[Tool]) -> Transcript:
    """Of messages that are spelled already."""
    return transcript_of(messages, _encode(tools))


def transcript_of(messages: Spelled, tools: bytes) -> Transcript:
    """The same where the tools are, too."""
    return Transcript(messages, tools, blake2b(tools, digest_size=16).digest())


NO_TOOLS = transcript(Spelled(), []).tools_digest


def frame_of(engine: str, tools_digest: bytes, offered_tools: str | None, reasoning_effort: str | None) -> bytes:
    """What, but for its messages, a prompt is rendered of: whose template, with which tools, told which of them, thinking how much."""
    return blake2b(_encode((engine, offered_tools, reasoning_effort)) + tools_digest, digest_size=16).digest()


class CallHistory:
    """The acknowledged calls of one claim."""

    def __init__(self) -> None:
        self._prompts = PromptIndex()
        self._messages = MessageIndex()
        self._tools: dict[str, bytes] = {}

    def write(self, told: Transcript) -> TranscriptDelta:
        """A request's messages and tools, as deltas."""
        messages = self._messages.encode(told.messages)
        known = NO_TOOLS if messages.base is None else self._tools.get(messages.base)
        return TranscriptDelta(messages, None if told.tools_digest == known else told.tools)

    def prompt(self, answer: Answer) -> TokenDelta:
        """An answer's prompt, as a delta."""
        return self._prompts.encode(unpack_ids(answer.prompt_ids))

    def whole(self, prompt: TokenDelta) -> bytes | None:
        """A prompt of the log in full, int32 LE; None where its base is not known."""
        if prompt.base is None:
            return prompt.rest
        shared = self._prompts.tokens(prompt.base, prompt.shared)
        return None if shared is None else pack_ids(shared) + prompt.rest

    def tokens(self, call_id: str) -> Ids | None:
        """A call's prompt and sampled tokens; None where they were forgotten."""
        return self._prompts.tokens(call_id)

    def add(self, call_id: str, told: Transcript, prompt: bytes, sampled: bytes, answer: Message) -> None:
        """Notes a call that is on the log; `prompt`, whole, and `sampled` are int32 LE."""
        self._prompts.add(call_id, unpack_ids(prompt), unpack_ids(sampled))
        self._messages.add(call_id, told.messages, answer)
        if len(self._tools) >= CALLS:
            self._tools = {}
        self._tools[call_id] = told.tools_digest
