"""What a claim's acknowledged calls were: the bases of its next ones (protocol 21).

Prompt, messages and tools each find what the log has already. Bounded; what was forgotten is written in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from polar.types.completion import MessageDelta, TokenDelta
from polar.types.tokens import unpack_ids
from proxy.chat import Answer, ChatRequest
from topics.delta import MessageIndex, PromptIndex

CALLS = 4096
"""Calls whose tools are known."""
NO_TOOLS = blake2b(b"[]", digest_size=16).digest()
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Written:
    """A request as the log takes it, and what `History.add` then needs of it."""

    messages: MessageDelta
    tools: bytes | None
    """None: those of the messages' base; without a base, none."""
    links: list[bytes]
    digest: bytes
    """Of the tools."""


class History:
    """The acknowledged calls of one claim."""

    def __init__(self) -> None:
        self._prompts = PromptIndex()
        self._messages = MessageIndex()
        self._tools: dict[str, bytes] = {}

    def write(self, request: ChatRequest) -> Written:
        """A request's messages and tools, as deltas."""
        messages, links = self._messages.encode(request.messages)
        tools = _encode(request.tools)
        digest = blake2b(tools, digest_size=16).digest()
        known = NO_TOOLS if messages.base is None else self._tools.get(messages.base)
        return Written(messages, None if digest == known else tools, links, digest)

    def prompt(self, answer: Answer) -> TokenDelta:
        """An answer's prompt, as a delta."""
        return self._prompts.encode(unpack_ids(answer.prompt_ids))

    def add(self, call_id: str, written: Written, answer: Answer) -> None:
        """Notes a call that is on the log."""
        self._prompts.add(call_id, unpack_ids(answer.prompt_ids), unpack_ids(answer.sampled_ids))
        self._messages.add(call_id, written.links, answer.message)
        if len(self._tools) >= CALLS:
            self._tools = {}
        self._tools[call_id] = written.digest
