"""Prompts that continue the tokens that were sampled, however a chat template renders the answer that was parsed from them.

An engine that owns its prompts gets the answer of the session that a request continues, with the tokens of that answer's call
(`ChatRequest.continued`). The prompt is these tokens, followed by the template's text after the answer. If the engine's own rendering
begins with these tokens, it is the prompt. Otherwise the following text is found without a tokenizer: the conversation is rendered twice,
the second time with other words in the answer's place (its twin). The common end of both renderings is the template's text after the
answer.

Invariant: nothing is guessed. A turn that the model ended continues after its end token if the template ends such turns with that token,
which a small conversation of our own shows once, and if in this conversation the template writes the same text before that token. Some
templates end turns with the next role's token (GLM's `<|user|>`): if another message comes in between, the first such token is not this
answer's end. A turn that a limit or a stop string cut off continues with the template's own end of turn. If the twin shows nothing, or the
server refuses our conversations, the rendering is the prompt, and begins another branch.
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
"""Renders a request by the engine's template, including the tokens that begin an answer. Raises EngineError."""
UNRENDERED = ("refused", "context_length")
"""Codes of EngineError: the template or the server accepts no such conversation."""
WORDS = ("The twin says 1.", "The twin says 2!")
"""Words of twins. They end differently, so that one of them ends differently from any text."""
CALL_ID = "call00001"
"""An id of nine letters and digits, which some templates require."""
CLOSING = '"}'
"""The end of a twin's arguments, which the answer's arguments may share."""
OBJECT_TOKENS = 128
"""Limit of the length of a twin's arguments, in any form that a template writes."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The tokens that an engine continues."""

    ids: Ids
    realigned: int
    """Number of sampled tokens in place of the rendering's, from the first difference to the last."""


class Continuing:
    """Prompts of one engine."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._ends: dict[bool, Ids] = {}
        """Tokens between an answer and the next message's words, for answers with tool calls (True) and without."""
        self._finding = asyncio.Lock()

    async def prompt(self, request: ChatRequest, rendered: Ids) -> Prompt:
        """The prompt of a request whose rendering is `rendered`. Raises EngineError."""
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
        """The template's tokens after the answer; None if they can't be determined."""
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
            return None  # the template drops the answer, or repeats it elsewhere
        follows = rendered[len(rendered) - shared :]
        # After a call's arguments the template ends the call, and that end may have been sampled.
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
        """The template's tokens from the end of an answer, with a call of this id or without calls, to the next message's words.

        None if the server accepts no such conversation. That is not remembered: another server may be behind its address later.
        """
        has_calls = call_id is not None
        if call_id not in (None, CALL_ID):
            return await self._found(call_id)
        async with self._finding:
            found = self._ends.get(has_calls)
            if found is None and (found := await self._found(call_id)) is not None:
                self._ends[has_calls] = found
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
    """The tokens after the answer's end token; None if the first `end` is not proven to be this answer's.

    The tokens before it must equal those before it in `ends`. Either sequence may begin later, as tokenizers join an answer's last
    characters to the next ones. `follows` may begin earlier by at most the `closing` characters that both arguments share.
    """
    at = np.flatnonzero(follows == end)
    if not len(at):
        return None
    lead, known = follows[: at[0] + 1], ends[: np.flatnonzero(ends == end)[0] + 1]
    is_proven = common_suffix(lead, known) == min(len(lead), len(known)) and len(lead) - len(known) <= closing
    return follows[at[0] + 1 :] if is_proven else None


def _twin(turn: Message) -> tuple[Message, int]:
    """The turn with other words, which end differently, and the limit of their tokens."""
    replace = msgspec.structs.replace
    if not turn.tool_calls:
        text = _text(turn).rstrip()
        words = next(words for words in WORDS if words[-1] != text[-1:])
        return replace(turn, content=words), len(words)
    *calls, last = turn.tool_calls
    text = last.function.arguments.rstrip(CLOSING + " \t\r\n")
    words = next(words for words in WORDS if words[-1] != text[-1:])
    call = replace(last, function=replace(last.function, arguments=_arguments(words)))
    return replace(turn, tool_calls=[*calls, call]), OBJECT_TOKENS


def _arguments(words: str) -> str:
    return f'{{"twin": "{words}{CLOSING}'


def _text(turn: Message) -> str:
    if isinstance(turn.content, list):
        return "".join(part.text for part in turn.content if isinstance(part, TextPart))
    return turn.content or ""


def _conversations(call_id: str | None) -> list[ChatRequest]:
    """Three small conversations: the first, one with another answer, and one with another next message."""
    return [_conversation(call_id, *texts) for texts in ((WORDS[0], "3"), (WORDS[1], "3"), (WORDS[0], "5"))]


def _conversation(call_id: str | None, words: str, next_message: str) -> ChatRequest:
    question = Message("user", "Which one?")
    if call_id is None:
        return ChatRequest([question, Message("assistant", words), Message("user", next_message)])
    call = ToolCall(call_id, FunctionCall("tell", _arguments(words)))
    return ChatRequest(
        [question, Message("assistant", tool_calls=[call]), Message("tool", next_message, tool_call_id=call.id)]
    )
