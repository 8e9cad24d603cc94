"""Twins: an answer with other words in its place, by which `continuing` finds out where a template's text after the answer begins.

A twin differs from its answer in one part, the last that a template writes. `Shape` says which part that is. The words are chosen so that
tokens show the place: they end differently, so one of them ends differently from any text, and they end with characters that no tokenizer
joins to the line end that some templates write after an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from proxy.chat import ChatRequest, FunctionCall, Message, TextPart, ToolCall

WORDS = ("The twin says 1", "The twin says no")
CALL_ID = "call00001"
"""An id of nine letters and digits, which some templates require."""
OTHER_ID = "call00002"
CLOSING = '"}'
"""The end of a twin's arguments, which the answer's arguments may share."""


class Shape(Enum):
    """The part of an answer in which its twins differ; the value limits its length in tokens, however a template writes it."""

    TEXT = 16
    """The content of an answer without calls."""
    UNWRITTEN_CALLS = 17
    """The content of an answer with calls whose arguments the template doesn't write."""
    CALLS = 128
    """The arguments of the last call."""


def words_unlike(turn: Message, shape: Shape) -> str:
    """Words that end differently from the answer's part."""
    end = (
        turn.tool_calls[-1].function.arguments.rstrip(CLOSING + " \t\r\n")
        if shape is Shape.CALLS
        else _text(turn).rstrip()
    )
    return next(words for words in WORDS if words[-1] != end[-1:])


def twin(turn: Message, shape: Shape, words: str) -> Message:
    """The answer with these words in the part of its shape."""
    if shape is not Shape.CALLS:
        return msgspec.structs.replace(turn, content=words)
    *calls, last = turn.tool_calls
    return msgspec.structs.replace(turn, tool_calls=[*calls, _with_arguments(last, words)])


@dataclass(frozen=True, slots=True)
class Kind:
    """The parts that an answer has: a template ends answers of one kind alike."""

    shape: Shape
    has_content: bool
    has_reasoning: bool
    has_more_calls: bool
    """More than one."""


def kind_of(turn: Message, shape: Shape) -> Kind:
    """The kind of an answer."""
    return Kind(shape, bool(_text(turn)), bool(turn.reasoning), len(turn.tool_calls) > 1)


def conversations(kind: Kind, call_id: str) -> list[ChatRequest]:
    """Small conversations with an answer of this kind: the first, one with the answer's twin, one with another next message, and, if the
    answer has other parts, one with another text in these. The last call has this id."""
    first = _answer(kind, call_id, WORDS[0])
    changed = _answer(kind, call_id, WORDS[1])
    twins = [twin(answer, kind.shape, WORDS[0]) for answer in (first, changed)]
    others = [_conversation(twins[1], "3")] if twins[0] != twins[1] else []
    return [
        _conversation(twins[0], "3"),
        _conversation(twin(first, kind.shape, WORDS[1]), "3"),
        _conversation(twins[0], "5"),
        *others,
    ]


def _answer(kind: Kind, call_id: str, words: str) -> Message:
    """An answer with these words in all parts."""
    ids = [] if kind.shape is Shape.TEXT else [*([OTHER_ID] if kind.has_more_calls else []), call_id]
    return Message(
        "assistant",
        content=words if kind.has_content else None,
        reasoning=words if kind.has_reasoning else None,
        tool_calls=[_with_arguments(ToolCall(one, FunctionCall("tell")), words) for one in ids],
    )


def _conversation(answer: Message, next_message: str) -> ChatRequest:
    results = [Message("tool", next_message, tool_call_id=call.id) for call in answer.tool_calls]
    return ChatRequest([Message("user", "Which one?"), answer, *(results or [Message("user", next_message)])])


def _with_arguments(call: ToolCall, words: str) -> ToolCall:
    function = msgspec.structs.replace(call.function, arguments=f'{{"twin": "{words}{CLOSING}')
    return msgspec.structs.replace(call, function=function)


def _text(turn: Message) -> str:
    if isinstance(turn.content, list):
        return "".join(part.text for part in turn.content if isinstance(part, TextPart))
    return turn.content or ""
