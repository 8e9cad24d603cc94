"""Calls that another request may continue or refer to by an id (OpenAI's `store`, `previous_response_id` and `item_reference`).

Conversations share the messages that they have in common, so memory is linear in what is new in each call. Bounded: beyond the limit all
but the newest call are forgotten, and a request that continues a forgotten call, or refers to its answer, is refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import msgspec

from proxy.chat import ChatRequest, ItemReference, Message, ToolCall
from proxy.errors import Refusal, RefusalError
from topics.calls.delta import Spelled, spell

BYTES = 16 * 1024 * 1024
"""JSON bytes of a claim's stored messages."""
FIELD = "previous_response_id"


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A message, linked to the one before it."""

    before: _Node | None
    message: Message


class StoredCalls:
    """One claim's stored calls."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, _Node] = {}
        """By the link of their message."""
        self._bytes = 0
        self._calls: dict[str, tuple[_Node, int]] = {}
        """A call's last message, and the index of the first message that is inherited, by call id."""

    @property
    def size(self) -> int:
        """Estimated bytes in memory."""
        return self._bytes + 150 * len(self._nodes)

    def add(self, call_id: str, messages: list[Message], spelled: Spelled, answer: Message, first: int) -> None:
        """Adds an answered call, whose messages are inherited from index `first` on."""
        whole = spelled.upto(len(messages))
        whole.append(spell(answer))
        if not self._keep(call_id, [*messages, answer], whole, first):
            self._nodes, self._bytes, self._calls = {}, 0, {}
            self._keep(call_id, [*messages, answer], whole, first)

    def resolved(self, request: ChatRequest) -> ChatRequest:
        """The request with the parts that it refers to in its messages.

        Raises RefusalError for an unknown item, and for one that is named twice, as OpenAI does: so the messages don't outgrow what is
        stored.
        """
        if not request.references:
            return request
        messages = list(request.messages)
        calls: defaultdict[int, dict[str, ToolCall]] = defaultdict(dict)
        seen: set[tuple[str | None, str | int]] = set()
        for reference in request.references:
            answer, at = self._answer(reference), reference.position
            if (item := (reference.call_id, reference.part)) in seen:
                words = (
                    f"{reference.field}: Duplicate item found with id '{reference.item_id[:200]}'. Send each item once."
                )
                raise RefusalError(Refusal.INVALID, words, field=reference.field)
            seen.add(item)
            if reference.part == "content":
                messages[at] = msgspec.structs.replace(messages[at], content=answer.content)
            elif reference.part == "reasoning":
                messages[at] = msgspec.structs.replace(messages[at], reasoning=answer.reasoning)
            else:
                calls[at][reference.item_id] = answer.tool_calls[reference.part]
        for at, found in calls.items():
            whole = [found.get(call.id, call) for call in messages[at].tool_calls]
            messages[at] = msgspec.structs.replace(messages[at], tool_calls=whole)
        return msgspec.structs.replace(request, messages=messages, references=[])

    def continued(self, request: ChatRequest) -> ChatRequest:
        """The request with the messages that it continues, after its instructions and before its own messages. Raises RefusalError."""
        if request.continues is None:
            return request
        found = self._calls.get(request.continues)
        if found is None:
            words = f"Previous response with id '{request.continues[:200]}' not found."
            raise RefusalError(Refusal.INVALID, words, field=FIELD)
        node, first = found
        first_own = int(request.instructions)
        messages = [*request.messages[:first_own], *_chain(node)[first:], *request.messages[first_own:]]
        return msgspec.structs.replace(request, messages=messages)

    def _answer(self, reference: ItemReference) -> Message:
        """The answer that has the part. Raises RefusalError."""
        found = self._calls.get(reference.call_id or "")
        if found is None or not _has(found[0].message, reference):
            words = (
                f"{reference.field}: Item with id '{reference.item_id[:200]}' not found. Only items of answers that this session has"
                " stored can be referred to: send the item itself, and requests without `store: false`."
            )
            raise RefusalError(Refusal.INVALID, words, field=reference.field)
        return found[0].message

    def _keep(self, call_id: str, messages: list[Message], spelled: Spelled, first: int) -> bool:
        """Adds a call; returns False, and changes nothing, if there is no room."""
        links = spelled.links
        known = next((at for at in range(len(links), 0, -1) if links[at - 1] in self._nodes), 0)
        more = sum(map(len, spelled.messages[known:]))
        if self._calls and self._bytes + more > BYTES:
            return False
        node = self._nodes[links[known - 1]] if known else None
        for link, message in zip(links[known:], messages[known:], strict=True):
            node = self._nodes[link] = _Node(node, message)
        assert node is not None, "there is an answer"
        self._bytes += more
        self._calls[call_id] = node, first
        return True


def _chain(node: _Node) -> list[Message]:
    found = []
    at: _Node | None = node
    while at is not None:
        found.append(at.message)
        at = at.before
    return found[::-1]


def _has(answer: Message, reference: ItemReference) -> bool:
    if isinstance(reference.part, int):
        return reference.part < len(answer.tool_calls)
    return reference.part == "content" or bool(answer.reasoning)
