"""Prompts that go on from the tokens that were sampled, whatever a chat template makes of the answer that they were parsed to.

An engine that owns its prompts is told which answer of the session a request continues, with that call's tokens
(`ChatRequest.continued`): the prompt is those, and then what the template writes after this answer. Where the engine's own rendering begins
with those tokens it stands as it is. Else what follows is found without a tokenizer, by rendering the conversation twice, the second time
with other words in the answer's place (its twin): what both end with is what the template writes after it, in this very conversation.

Invariant: nothing is guessed. A turn that the model ended goes on after the token that ended it, if the template ends such turns with it,
which a small conversation of our own shows once; a turn that a limit or a stop string cut off goes on with the template's own end of turn.
Where the twin tells nothing the rendering stands, and the prompt is another branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from polar.types.tokens import Ids, common_prefix, common_suffix
from proxy.chat import ChatRequest, Continued, FunctionCall, Message, TextPart, ToolCall
from proxy.errors import EngineFault

Render = Callable[[ChatRequest], Awaitable[Ids]]
"""The prompt that an engine's template makes of a request, with what begins an answer at its end. Raises EngineFault."""
UNRENDERED = ("refused", "context_length")
"""Codes of EngineFault: the template, or the server, takes no such conversation."""
WORDS = ("The twin says 1.", "The twin says 2!")
"""What twins say. They end unlike one another, so that one of them ends unlike any text."""
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

    async def prompt(self, request: ChatRequest, rendered: Ids) -> Prompt:
        """The prompt of a request that is `rendered`. Raises EngineFault."""
        continued = request.continued
        if continued is None or common_prefix(continued.tokens, rendered) == len(continued.tokens):
            return Prompt(rendered, 0)
        follows = await self._follows(request, continued, rendered)
        if follows is None:
            return Prompt(rendered, 0)
        ids = np.concatenate((continued.tokens, follows))
        same = common_prefix(ids, rendered)
        return Prompt(ids, len(ids) - same - common_suffix(ids[same:], rendered[same:]))

    async def _follows(self, request: ChatRequest, continued: Continued, rendered: Ids) -> Ids | None:
        """What the template writes after the answer; None where it can't be told."""
        turn = request.messages[continued.position]
        twin, size = _twin(turn)
        messages = [*request.messages]
        messages[continued.position] = twin
        try:
            other = await self._render(msgspec.structs.replace(request, messages=messages))
        except EngineFault as fault:
            if fault.code not in UNRENDERED:
                raise
            return None
        shared = common_suffix(rendered, other)
        if shared == len(rendered) or len(other) - shared - common_prefix(rendered, other) > size:
            return None  # the template leaves the answer out, or writes of it elsewhere, too
        follows = rendered[len(rendered) - shared :]
        if continued.is_ended:
            end = continued.tokens[-1]
            if end in await self._end_of(bool(turn.tool_calls)):
                # The twin doesn't say it, so the first is the one that ends the answer.
                at = np.flatnonzero(follows == end)
                return follows[at[0] + 1 :] if len(at) else None
        # After a call's arguments comes the end of the call, too, which may have been sampled.
        return None if turn.tool_calls else follows

    async def _end_of(self, calls: bool) -> Ids:
        """What the template writes from an answer's end to the next message's words; empty where it takes no such conversation."""
        if calls not in self._ends:
            try:
                one, twin, other = await asyncio.gather(*(self._render(small) for small in _conversations(calls)))
            except EngineFault as fault:
                if fault.code not in UNRENDERED:
                    raise
                one = twin = other = np.empty(0, np.int32)
            self._ends[calls] = one[len(one) - common_suffix(one, twin) : common_prefix(one, other)]
        return self._ends[calls]


def _twin(turn: Message) -> tuple[Message, int]:
    """The turn with other words, which end otherwise, and the most tokens that they can be."""
    replace = msgspec.structs.replace
    if not turn.tool_calls:
        said = _text(turn).rstrip()
        words = next(words for words in WORDS if words[-1] != said[-1:])
        return replace(turn, content=words), len(words)
    *calls, last = turn.tool_calls
    arguments = next(each for each in map(_arguments, WORDS) if each != last.function.arguments)
    call = replace(last, function=replace(last.function, arguments=arguments))
    return replace(turn, tool_calls=[*calls, call]), OBJECT_TOKENS


def _arguments(words: str) -> str:
    return f'{{"twin": "{words}"}}'


def _text(turn: Message) -> str:
    if isinstance(turn.content, list):
        return "".join(part.text for part in turn.content if isinstance(part, TextPart))
    return turn.content or ""


def _conversations(calls: bool) -> list[ChatRequest]:
    """Three small ones: one, the same with other words of the assistant's, and with another message after them."""
    return [_conversation(calls, *told) for told in ((WORDS[0], "3"), (WORDS[1], "3"), (WORDS[0], "5"))]


def _conversation(calls: bool, words: str, then: str) -> ChatRequest:
    asked = Message("user", "Which one?")
    if not calls:
        return ChatRequest([asked, Message("assistant", words), Message("user", then)])
    # Some templates want ids of nine letters and digits.
    call = ToolCall("call00001", FunctionCall("tell", _arguments(words)))
    return ChatRequest([asked, Message("assistant", tool_calls=[call]), Message("tool", then, tool_call_id=call.id)])
