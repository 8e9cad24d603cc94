"""Prompts that continue the tokens that were sampled, however a chat template renders the answer that was parsed from them.

An engine that owns its prompts gets the answer of the session that a request continues, with the tokens of that answer's call
(`ChatRequest.continued`). The prompt is these tokens, followed by the template's text after the answer. If the engine's own rendering
begins with these tokens, it is the prompt. Otherwise the following text is found without a tokenizer: the conversation is rendered twice,
the second time with other words in the answer's place (its twin). The common end of both renderings is the template's text after the
answer.

The twin of an answer with tool calls has other arguments in the last call. Some templates write no calls of earlier answers (LFM2,
SmolLM3): the twin then has another content. Others write the content behind the results of the calls (Gemma 4), where it would be repeated:
the rendering is then the prompt.

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

from proxy.chat import ChatRequest, Message, RepeatedAnswer
from proxy.engines.twins import CALL_ID, CLOSING, WORDS, Kind, Shape, conversations, kind_of, twin, words_unlike
from proxy.errors import EngineError
from topics.types.tokens import Ids, common_prefix, common_suffix

Render = Callable[[ChatRequest], Awaitable[Ids]]
"""Renders a request by the engine's template, including the tokens that begin an answer. Raises EngineError."""
UNRENDERED = ("refused", "context_length")
"""Codes of EngineError: the template or the server accepts no such conversation."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The tokens that an engine continues."""

    ids: Ids
    realigned: int
    """Number of sampled tokens in place of the rendering's, from the first difference to the last."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """What a twin shows of an answer."""

    shape: Shape
    words: str
    """The twin's."""
    other: Ids
    """The rendering of the conversation with the twin."""
    follows: Ids
    """What both renderings end with."""


class Continuing:
    """Prompts of one engine."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._ends: dict[Kind, Ids] = {}
        """Tokens from the end of an answer's last words to the next message's words; empty if another of the answer's parts is among them,
        or if the next message comes first."""
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
        try:
            shown = await self._shown(request, continued.position, rendered)
            if shown is None:
                return None
            if continued.is_ended:
                return await self._after_end(continued.tokens[-1], request, continued.position, shown)
            return await self._after_words(request, continued.position, shown)
        except EngineError as fault:
            if fault.code not in UNRENDERED:
                raise
            return None

    async def _shown(self, request: ChatRequest, position: int, rendered: Ids) -> _Shown | None:
        """The tokens after the answer's last words; None if the twin doesn't show them. Raises EngineError."""
        turn = request.messages[position]
        shape = Shape.CALLS if turn.tool_calls else Shape.TEXT
        words = words_unlike(turn, shape)
        other = await self._with(request, position, twin(turn, shape, words))
        if shape is Shape.CALLS and np.array_equal(other, rendered):
            shape = Shape.UNWRITTEN_CALLS
            words = words_unlike(turn, shape)
            other = await self._with(request, position, twin(turn, shape, words))
        shared = common_suffix(rendered, other)
        if shared == len(rendered) or len(other) - shared - common_prefix(rendered, other) > shape.value:
            return None  # the template drops the answer, or repeats it elsewhere
        return _Shown(shape, words, other, rendered[len(rendered) - shared :])

    async def _with(self, request: ChatRequest, position: int, turn: Message) -> Ids:
        """The rendering of the conversation with this answer in place of the one at `position`. Raises EngineError."""
        messages = [*request.messages[:position], turn, *request.messages[position + 1 :]]
        return await self._render(msgspec.structs.replace(request, messages=messages))

    async def _after_end(self, end: np.int32, request: ChatRequest, position: int, shown: _Shown) -> Ids | None:
        """The template's tokens after the token that ended the answer. Raises EngineError."""
        turn = request.messages[position]
        kind = kind_of(turn, shown.shape)
        # Some templates write a call's id after its arguments.
        for call_id in (CALL_ID, *(call.id for call in turn.tool_calls[-1:])):
            ends = await self._end_of(kind, call_id)
            if not len(ends):
                return None
            if end not in ends:
                return await self._after_words(request, position, shown)
            after = _after(end, shown.follows, ends, len(CLOSING) if kind.shape is Shape.CALLS else 0)
            if after is not None:
                return after
        return None

    async def _after_words(self, request: ChatRequest, position: int, shown: _Shown) -> Ids | None:
        """The template's tokens after a text, with the template's own end of turn. Raises EngineError."""
        if shown.shape is not Shape.TEXT:
            return None  # after a call's arguments the template ends the call, and that end may have been sampled
        # The rendering may join the text's last characters to the template's next ones; it doesn't with the words of twins.
        words = next(words for words in WORDS if words != shown.words)
        spare = await self._with(request, position, twin(request.messages[position], shown.shape, words))
        shared = common_suffix(shown.other, spare)
        return shown.other[len(shown.other) - shared :] if shared >= len(shown.follows) else None

    async def _end_of(self, kind: Kind, call_id: str) -> Ids:
        """The template's tokens after an answer of this kind whose last call has this id, as in `_ends`.

        Raises EngineError if the server accepts no such conversation. That is not remembered: another server may be behind its address
        later.
        """
        if call_id != CALL_ID:
            return await self._found(kind, call_id)
        async with self._finding:
            if kind not in self._ends:
                self._ends[kind] = await self._found(kind, call_id)
            return self._ends[kind]

    async def _found(self, kind: Kind, call_id: str) -> Ids:
        one, other, later, *changed = await asyncio.gather(*map(self._render, conversations(kind, call_id)))
        length = common_suffix(one, other)
        if any(common_suffix(one, rendered) < length for rendered in changed):
            return one[:0]
        return one[len(one) - length : common_prefix(one, later)]


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
