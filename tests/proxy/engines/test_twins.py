"""Twins differ from their answer in one part alone, to its very end, and small conversations have the answer's parts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat import FunctionCall, Message, TextPart, ToolCall
from proxy.engines.twins import CALL_ID, CLOSING, WORDS, Kind, Shape, conversations, kind_of, twin, words_unlike

TEXTS = st.one_of(
    st.none(), st.text(max_size=8), st.sampled_from([*WORDS, f"{WORDS[0]} \n", f'{{"a": "{WORDS[1]}" }}'])
)
CALLS = st.builds(ToolCall, st.just("id"), st.builds(FunctionCall, st.just("look"), TEXTS.map(lambda text: text or "")))
ANSWERS = st.builds(
    Message,
    st.just("assistant"),
    TEXTS | TEXTS.map(lambda text: [TextPart(text or "")]),
    TEXTS,
    st.lists(CALLS, max_size=2),
)


def end_of(turn: Message, shape: Shape) -> str:
    if shape is Shape.CALLS:
        return turn.tool_calls[-1].function.arguments.rstrip(CLOSING + " \t\r\n")[-1:]
    text = turn.content if isinstance(turn.content, str) else "".join(part.text for part in turn.content or [])  # type: ignore[union-attr]
    return text.rstrip()[-1:]


@given(ANSWERS)
def test_a_twin_ends_otherwise_and_is_equal_elsewhere(answer: Message) -> None:
    for shape in (Shape.CALLS, Shape.UNWRITTEN_CALLS) if answer.tool_calls else (Shape.TEXT,):
        other = twin(answer, shape, words_unlike(answer, shape))
        assert end_of(other, shape) != end_of(answer, shape)
        if shape is Shape.CALLS:
            last = msgspec.structs.replace(other.tool_calls[-1], function=answer.tool_calls[-1].function)
            other = msgspec.structs.replace(other, tool_calls=[*other.tool_calls[:-1], last])
        else:
            other = msgspec.structs.replace(other, content=answer.content)
        assert other == answer


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (Kind(Shape.TEXT, True, False, False), 3),
        (Kind(Shape.TEXT, True, True, False), 4),
        (Kind(Shape.CALLS, False, False, False), 3),
        (Kind(Shape.CALLS, True, False, True), 4),
        (Kind(Shape.UNWRITTEN_CALLS, True, True, True), 4),
    ],
)
def test_small_conversations_have_the_parts_of_the_kind(kind: Kind, number: int) -> None:
    requests = conversations(kind, CALL_ID)
    assert len({str(request.messages) for request in requests}) == len(requests) == number
    for request in requests:
        question, answer, *results = request.messages
        assert question == requests[0].messages[0]
        assert kind_of(answer, kind.shape) == kind
        assert [call.id for call in answer.tool_calls] == [one.tool_call_id for one in results if one.role == "tool"]
