"""Prompts that go on from the tokens that were sampled, whatever a chat template makes of the answer that they were parsed to.

An engine that owns its prompts is told which answer of the session a request continues, with that call's tokens
(`ChatRequest.continued`): the prompt is those, and then what the template writes after this answer. Where the engine's own rendering begins
with those tokens it stands as it is. Else what follows is found without a tokenizer, by rendering the conversation twice, the second time
with other words in the answer's place (its twin): what both end with is what the template writes after it, in this very conversation.

Invariant: nothing is guessed. A turn that the model ended goes on after the token that ended it, if the template ends such turns with it,
which a small conversation of our own shows once, and writes in this conversation what it writes there from the answer to that token. Some
end turns with the next role's token (GLM's `<|user|>`): where another message comes in between, its first one is not this answer's end. A
turn that a limit or a stop string cut off goes on with the template's own end of turn. Where the twin tells nothing, or the server refuses
our conversations, the rendering stands, and the prompt is another branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from proxy.chat import ChatRequest, FunctionCall, Message, RepeatedAnswer, TextPart, ToolCall
from proxy.errors import EngineError
from topics.types.tokens import Ids, common_prefix, common_suffix

Render = Callable[[ChatRequest], Awaitable[Ids]]
"""The prompt that an engine's template makes of a request, with what begins an answer at its end. Raises EngineError."""
UNRENDERED = ("refused", "context_length")
"""Codes of EngineError: the template, or the server, takes no such conversation."""
WORDS = ("The twin says 1.", "The twin says 2!")
"""What twins say. They end unlike one another, so that one of them ends unlike any text."""
CALL_ID = "call00001"
"""Some templates want ids of nine letters and digits."""
CLOSING = '"}'
"""The end of a twin's arguments, which the answer's own may share."""
OBJECT_TOKENS = 128
"""The most that a twin's arguments can be, in whatever form the template writes them."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What an engine is asked to go on from."""

    ids: Ids
    realigned: int
    """Tokens that stand as they were sampled where the rendering differs: from the first that differs to the last."""


class Continuing:
    """One engine's prompts."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._ends: dict[bool, Ids] = {}
        """What comes between an answer and the next message's words, by whether the answer calls tools."""
        self._finding = asyncio.Lock()

    async def prompt(self, request: ChatRequest, rendered: Ids) -> Prompt:
        """The prompt of a request that is `rendered`. Raises EngineError."""
        continued = request.continued
        if continued is None or common_prefix(continued.tokens, rendered) == len(continued.tokens):
            return Prompt(rendered, 0)
        follows = await self._follows(request, continued, rendered)
        if follows is None:
            return Prompt(rendered, 0)
        ids = np.concatenate((continued.tokens, follows))
        same = common_prefix(ids, rendered)
        return Prompt(ids, len(ids) - same - common_suffix(ids[same:], rendered[same:]))

    async def _follows(self, request: ChatRequest, continued: RepeatedAnswer, rendered: Ids) -> Ids | None:
        """What the template writes after the answer; None where it can't be told."""
        turn = request.messages[continued.position]
        twin, size = _twin(turn)
        messages = [*request.messages]
        messages[continued.position] = twin
        try:
            other = await self._render(msgspec.structs.replace(request, messages=messages))
        except EngineError as fault:
            if fault.code not in UNRENDERED:
                raise
            return None
        shared = common_suffix(rendered, other)
        if shared == len(rendered) or len(other) - shared - common_prefix(rendered, other) > size:
            return None  # the template leaves the answer out, or writes of it elsewhere, too
        follows = rendered[len(rendered) - shared :]
        # After a call's arguments comes the end of the call, too, which may have been sampled.
        whole = None if turn.tool_calls else follows
        if not continued.is_ended:
            return whole
        end = continued.tokens[-1]
        # Some templates write a call's id after its arguments.
        for call_id in [CALL_ID, turn.tool_calls[-1].id] if turn.tool_calls else [None]:
            ends = await self._end_of(call_id)
            if ends is None:
                return None
            if end not in ends:
                return whole
            after = _after(end, follows, ends, len(CLOSING) if turn.tool_calls else 0)
            if after is not None:
                return after
        return None

    async def _end_of(self, call_id: str | None) -> Ids | None:
        """What the template writes from an answer's end to the next message's words, where the answer calls a tool by this id, or none.

        None where the server takes no such conversation: asked again next time, as another server may be behind its address then.
        """
        calls = call_id is not None
        if call_id not in (None, CALL_ID):
            return await self._found(call_id)
        async with self._finding:
            found = self._ends.get(calls)
            if found is None and (found := await self._found(call_id)) is not None:
                self._ends[calls] = found
            return found

    async def _found(self, call_id: str | None) -> Ids | None:
        try:
            one, twin, other = await asyncio.gather(*(self._render(small) for small in _conversations(call_id)))
        except EngineError as fault:
            if fault.code not in UNRENDERED:
                raise
            return None
        return one[len(one) - common_suffix(one, twin) : common_prefix(one, other)]


def _after(end: np.int32, follows: Ids, ends: Ids, closing: int) -> Ids | None:
    """What follows the end of the answer; None where the first `end` is not proven to be this answer's.

    What leads up to it must be what leads up to it in `ends`. Either may begin later, as tokenizers join an answer's last characters to
    what comes next; `follows` earlier by at most the `closing` characters that the answer's arguments share with those of its twin.
    """
    at = np.flatnonzero(follows == end)
    if not len(at):
        return None
    lead, own = follows[: at[0] + 1], ends[: np.flatnonzero(ends == end)[0] + 1]
    is_its = common_suffix(lead, own) == min(len(lead), len(own)) and len(lead) - len(own) <= closing
    return follows[at[0] + 1 :] if is_its else None


def _twin(turn: Message) -> tuple[Message, int]:
    """The turn with other words, which end otherwise, and the most tokens that they can be."""
    replace = msgspec.structs.replace
    if not turn.tool_calls:
        said = _text(turn).rstrip()
        words = next(words for words in WORDS if words[-1] != said[-1:])
        return replace(turn, content=words), len(words)
    *calls, last = turn.tool_calls
    said = last.function.arguments.rstrip(CLOSING + " \t\r\n")
    words = next(words for words in WORDS if words[-1] != said[-1:])
    call = replace(last, function=replace(last.function, arguments=_arguments(words)))
    return replace(turn, tool_calls=[*calls, call]), OBJECT_TOKENS


def _arguments(words: str) -> str:
    return f'{{"twin": "{words}{CLOSING}'


def _text(turn: Message) -> str:
    if isinstance(turn.content, list):
        return "".join(part.text for part in turn.content if isinstance(part, TextPart))
    return turn.content or ""


def _conversations(call_id: str | None) -> list[ChatRequest]:
    """Three small ones: one, the same with other words of the assistant's, and with another message after them."""
    return [_conversation(call_id, *told) for told in ((WORDS[0], "3"), (WORDS[1], "3"), (WORDS[0], "5"))]


def _conversation(call_id: str | None, words: str, then: str) -> ChatRequest:
    asked = Message("user", "Which one?")
    if call_id is None:
        return ChatRequest([asked, Message("assistant", words), Message("user", then)])
    call = ToolCall(call_id, FunctionCall("tell", _arguments(words)))
    return ChatRequest([asked, Message("assistant", tool_calls=[call]), Message("tool", then, tool_call_id=call.id)])
