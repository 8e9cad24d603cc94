"""Turns that harnesses repeat in their own spelling, and what the model reads of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat import FunctionCall, ImagePart, ImageUrl, Message, TextPart, ToolCall
from proxy.session import turns
from proxy.session.turns import SampledTurns
from topics.calls.delta import Spelled

USER = Message("user", "go")
edited = msgspec.structs.replace


def said(
    content: str | None = None, *arguments: str, reasoning: str | None = None, name: str = "bash", ids: str = "own"
) -> Message:
    """An answer as an engine gives it, with a tool call for each of `arguments`."""
    calls = [ToolCall(f"{ids}{at}", FunctionCall(name, told)) for at, told in enumerate(arguments)]
    return Message("assistant", content, reasoning, calls)


def known(*answers: Message, to: list[Message] | None = None) -> SampledTurns:
    """What a claim remembers whose model gave these answers to the same messages."""
    made = SampledTurns()
    for at, answer in enumerate(answers):
        made.add(f"c{at}", Spelled(to or [USER]).link, answer)
    return made


def restored(remembered: SampledTurns, *messages: Message) -> list[Message]:
    told, spelled = remembered.restore([USER, *messages])
    assert spelled.links == Spelled(told).links
    assert spelled.messages == Spelled(told).messages
    return told[1:]


# --- what harnesses do to a turn


def reserialised(message: Message) -> Message:
    """Arguments parsed and written compactly, as JavaScript does it: 5000.0 is 5000, \\u00e9 is é."""

    def compact(arguments: str) -> str:
        try:
            parsed = json.loads(arguments, parse_float=lambda digits: _as_javascript(float(digits)))
        except ValueError:
            return arguments
        return json.dumps(parsed, separators=(",", ":"), ensure_ascii=False)

    return with_arguments(message, compact)


def _as_javascript(value: float) -> float | int:
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def sorted_keys(message: Message) -> Message:
    """Arguments written with sorted keys and everything beyond ASCII escaped."""

    def spelled(arguments: str) -> str:
        try:
            return json.dumps(json.loads(arguments), sort_keys=True)
        except ValueError:
            return arguments

    return with_arguments(message, spelled)


def with_arguments(message: Message, rewrite: Callable[[str], str]) -> Message:
    calls = [
        edited(call, function=edited(call.function, arguments=rewrite(call.function.arguments)))
        for call in message.tool_calls
    ]
    return edited(message, tool_calls=calls)


def without_ids(message: Message) -> Message:
    return edited(message, tool_calls=[edited(call, id="") for call in message.tool_calls])


def invented_ids(message: Message) -> Message:
    return edited(message, tool_calls=[edited(c, id=f"run_{at}") for at, c in enumerate(message.tool_calls)])


def trimmed(message: Message) -> Message:
    content, reasoning = message.content, message.reasoning
    return edited(
        message,
        content=content.strip() if isinstance(content, str) else content,
        reasoning=None if reasoning is None else reasoning.strip(),
    )


def cut_at_the_end(message: Message) -> Message:
    return edited(message, content=message.content.rstrip() if isinstance(message.content, str) else message.content)


def null_for_empty(message: Message) -> Message:
    return edited(message, content=message.content or None)


def empty_for_null(message: Message) -> Message:
    return edited(message, content=message.content or "")


def in_parts(message: Message) -> Message:
    content = message.content
    return (
        edited(message, content=[TextPart(content[:3]), TextPart(content[3:])]) if isinstance(content, str) else message
    )


def without_reasoning(message: Message) -> Message:
    """As clients of Chat Completions repeat a turn: the API has no place for reasoning."""
    return edited(message, reasoning=None)


REWRITES = [
    reserialised,
    sorted_keys,
    without_ids,
    invented_ids,
    trimmed,
    cut_at_the_end,
    null_for_empty,
    empty_for_null,
    in_parts,
    without_reasoning,
]

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """JSON with the whitespace, escapes and number forms that models choose, or what they fail to make of it."""
    value = draw(st.dictionaries(TEXT, VALUES, max_size=2))
    text = json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 2])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")])),
    )
    return text[: draw(st.sampled_from([len(text)] * 4 + [len(text) - 1]))]


ARGUMENTS = spelled()
NAMES = st.sampled_from(["bash", "read"])


@st.composite
def answers(draw: st.DrawFn) -> Message:
    calls = draw(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=2))
    # An engine's ids are its own, and no text of one answer stands in another's.
    mark = draw(st.uuids()).hex
    return Message(
        "assistant",
        draw(st.none() | st.just("") | st.text(" \n", max_size=2).map(lambda space: f"{space}{mark}{space}")),
        draw(st.none() | st.text(" \n", max_size=2).map(lambda space: f"{space}think{space}")),
        [ToolCall(f"{mark}{at}", FunctionCall(name, told)) for at, (name, told) in enumerate(calls)],
    )


def tools_of(message: Message) -> list[Message]:
    return [Message("tool", f"result {at}", tool_call_id=call.id) for at, call in enumerate(message.tool_calls)]


@settings(deadline=None, max_examples=150)
@given(st.lists(answers(), min_size=1, max_size=3), st.lists(st.sampled_from(REWRITES), max_size=4))
def test_whatever_harnesses_rewrite_the_model_reads_what_it_said(
    sampled: list[Message], rewrites: list[Callable[[Message], Message]]
) -> None:
    remembered, wire, own = SampledTurns(), [USER], [USER]
    for at, answer in enumerate(sampled):
        remembered.add(f"c{at}", Spelled(own).link, answer)
        told = answer
        for rewrite in rewrites:
            told = rewrite(told)
        wire += [told, *tools_of(told)]
        own += [answer, *tools_of(answer)]
    assert remembered.restore(wire)[0] == own


@settings(deadline=None, max_examples=150)
@given(answers(), st.data())
def test_a_turn_that_was_edited_stays_as_the_harness_wrote_it(answer: Message, data: st.DataObject) -> None:
    edits: list[Message] = [
        edited(answer, content=f"{answer.content or ''}!"),
        edited(answer, reasoning=f"{answer.reasoning or ''}!"),
        edited(answer, tool_calls=[*answer.tool_calls, ToolCall("new", FunctionCall("bash", "{}"))]),
    ]
    if answer.content:
        edits.append(edited(answer, content=f" {answer.content}"))
    for at, call in enumerate(answer.tool_calls):
        others = [*answer.tool_calls[:at], *answer.tool_calls[at + 1 :]]
        edits += [
            edited(answer, tool_calls=others),
            with_arguments(answer, lambda told: told + "x"),
            edited(answer, tool_calls=[*others, edited(call, function=edited(call.function, name="other"))]),
        ]
    change = data.draw(st.sampled_from(edits))
    assert restored(known(answer), change) == [change]


@settings(deadline=None, max_examples=150)
@given(VALUES, VALUES)
def test_arguments_are_compared_by_value(one: Any, other: Any) -> None:
    answer, repeated = (said(None, json.dumps({"a": value})) for value in (one, other))
    is_equal = json.dumps(_doubles(one), sort_keys=True) == json.dumps(_doubles(other), sort_keys=True)
    assert (restored(known(answer), repeated) == [answer]) == is_equal or answer == repeated


def _doubles(value: Any) -> Any:
    """With every number as JavaScript has it."""
    if isinstance(value, list):
        return [_doubles(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _doubles(inner) for name, inner in value.items()}
    return value if isinstance(value, bool) or not isinstance(value, int | float) else float(value) + 0.0


def test_endless_nesting_is_compared_as_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    answer = said(None, deep)
    assert restored(known(answer), said(None, deep, ids="x")) == [answer]
    assert restored(known(answer), said(None, deep + " ")) == [said(None, deep + " ")]


def test_tools_answer_the_calls_that_were_sampled_whatever_ids_the_harness_gives() -> None:
    answer = said(None, '{"a": 1}', '{"b": 2}')
    told = [said(None, '{"a":1}', '{"b":2}', ids="x"), Message("tool", "1", tool_call_id="x1")]
    assert restored(known(answer), *told) == [answer, Message("tool", "1", tool_call_id="own1")]
    alike = without_ids(answer)
    told = [alike, *(Message("tool", text, tool_call_id="") for text in ("1", "2", "3"))]
    assert [message.tool_call_id for message in restored(known(answer), *told)[1:]] == ["own0", "own1", "own1"]


def test_a_later_turn_takes_over_the_ids_that_it_shares() -> None:
    first, second = said(None, '{"a": 1}'), said(None, '{"b": 2}', ids="call_")
    told = [
        said(None, '{"a":1}', ids="call_"),
        Message("tool", "1", tool_call_id="call_0"),
        second,
        Message("tool", "2", tool_call_id="call_0"),
    ]
    assert [m.tool_call_id for m in restored(known(first), *told) if m.role == "tool"] == ["own0", "call_0"]


def test_reasoning_that_a_harness_leaves_out_returns_at_its_place_and_nowhere_else() -> None:
    answer = said("Done.", '{"a" :1}', reasoning=" Hm. ")
    elsewhere = known(answer, to=[Message("system", "before"), USER])
    assert restored(known(answer), said("Done.", '{"a":1}', reasoning="Hm.")) == [answer]
    assert restored(known(answer), said("Done.", '{"a":1}')) == [answer]
    assert restored(elsewhere, said("Done.", '{"a":1}')) == [edited(answer, reasoning=None)]
    assert restored(known(answer), said("Done.", '{"a":1}', reasoning="H")) == [said("Done.", '{"a":1}', reasoning="H")]
    assert restored(known(answer), said("Done!", '{"a":1}')) == [said("Done!", '{"a":1}')]


def test_of_equal_turns_each_is_the_one_said_at_its_place() -> None:
    one, two = said(None, '{"a": 1}'), said(None, '{"a" : 1}')
    remembered = SampledTurns()
    between = Message("tool", "again", tool_call_id="own0")
    remembered.add("c1", Spelled([USER]).link, one)
    remembered.add("c2", Spelled([USER, one, between]).link, two)
    wire = said(None, '{"a":1}', ids="")
    assert restored(remembered, wire, between, wire) == [one, between, two]


@pytest.mark.parametrize("others", ['{"n":1.0}', '{"n":12345678901234567891}'])
def test_a_turn_in_the_very_words_that_were_said_is_never_taken_for_a_newer_one(others: str) -> None:
    own = others.replace("1.0", "1").replace("891", "890")
    repeated = said("So.", own, ids="made up")
    remembered = known(said("So.", own, ids="first"), said("So.", others, ids="newer"), to=[Message("user", "before")])
    [told] = restored(remembered, repeated)
    assert told.tool_calls == said("So.", own, ids="first").tool_calls


@pytest.mark.parametrize(
    ("sampled", "repeated", "is_it"),
    [
        ('{"a" :1.0}', '{"a":1}', True),
        ('{"a": "\\u00e9"}', '{"a":"é"}', True),
        ('{"a": -0.0, "b": 1e2}', '{"a":0,"b":100}', True),
        ('{"a": 1, "a": 2}', '{"a":2}', True),
        ("", "{}", True),
        ('{"a": true}', '{"a":1}', False),
        ('{"a": 0}', '{"a":null}', False),
        ('{"a": "1"}', '{"a":1}', False),
        ('{"a": 1', '{"a":1}', False),
        ('{"id": 12345678901234567891}', '{"id":12345678901234567000}', True),  # as JavaScript writes it
        ('{"id": 12345678901234567891}', '{"id":12345678901234567890}', False),
        ('{"id": 9007199254740993}', '{"id":9007199254740992}', True),
        ('{"id": 9007199254740992}', '{"id":9007199254740993}', False),
        ('{"id": 0.1000000000000000055}', '{"id":0.1}', True),
        ('{"id": 0.1}', '{"id":0.1000000000000000055}', False),
        ('{"id": 1e400}', '{"id":null}', True),
        ('{"id": null}', '{"id":1e400}', False),
        ('{"id": 1e400}', '{"id":1e401}', False),
        ('{"id": 1e-99999999999999999999}', '{"id":0}', True),
        ('{"id": [9007199254740993,1e2]}', '{"id":[9007199254740992,100]}', True),
        ('{"id": 1e2}', '{"id":100.0}', True),
    ],
)
def test_arguments_of_the_same_value_or_as_javascript_rounds_it_come_back_in_the_very_string_that_was_sampled(
    sampled: str, repeated: str, is_it: bool
) -> None:
    answer, written = said("I look.", sampled), said("I look.", repeated)
    assert restored(known(answer), written) == [answer if is_it else written]


def test_of_answers_to_one_prompt_the_one_with_these_ids_then_these_words_then_the_newest_is_meant() -> None:
    calls = [said(None, '{"a": 1}', ids="x"), said(None, '{"a" : 1}', ids="y"), said(None, '{"a" :1}', ids="z")]
    assert restored(known(*calls), said(None, '{"a":1}', ids="y")) == [calls[1]]
    assert restored(known(*calls), said(None, '{"a":1}', ids="")) == [calls[2]]
    texts = [said("Done."), said("Done.\n")]
    assert restored(known(*texts), said("Done.")) == [texts[0]]
    assert restored(known(*texts), said("Done.\n")) == [texts[1]]


def test_after_an_edit_ids_still_tell_turns_apart() -> None:
    one, two = said(None, '{"a": 1}', ids="x"), said(None, '{"a" : 1}', ids="y")
    remembered = known(one, two, to=[Message("system", "before"), USER])
    assert restored(remembered, said(None, '{"a":1}', ids="x")) == [one]


def test_an_answer_that_nobody_saw_is_never_meant() -> None:
    one, two = said(None, '{"a": 1}'), said(None, '{"a" : 1}')
    remembered = known(one, two)
    remembered.forget("c1")
    remembered.forget("c1")
    assert restored(remembered, said(None, '{"a":1}')) == [one]
    remembered.forget("c0")
    assert restored(remembered, said(None, '{"a":1}')) == [said(None, '{"a":1}')]


def test_what_others_said_is_left_alone() -> None:
    answer = said("Done.")
    told = [
        Message("user", "Done. "),
        Message("assistant", [TextPart("Done."), ImagePart(ImageUrl("data:,"))]),
        Message("assistant", "Done.", name="another"),
        Message("tool", "x", tool_call_id="unknown"),
    ]
    assert restored(known(answer), *told) == told


def test_strangers_are_turns_that_the_model_has_not_said() -> None:
    remembered = known(said("Done.", '{"a": 1}'))
    assert remembered.unknown_turns([USER, said("Done.", '{"a":1}')]) == frozenset()
    [one] = remembered.unknown_turns([said("Other.")])
    assert remembered.unknown_turns([USER, said("Other."), said("Other.")]) == {one}


@pytest.mark.parametrize(("limit", "value"), [("TURNS", 3), ("BYTES", 200)])
def test_the_oldest_turns_are_forgotten(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(turns, limit, value)
    answers = [said(f"{at}", '{"a" :1}', ids=f"i{at}") for at in range(5)]
    remembered = known(*answers)
    back = restored(remembered, *(reserialised(answer) for answer in answers))
    kept = 3 if limit == "TURNS" else 200 // len(msgspec.json.encode(answers[0]))
    assert back[-kept:] == answers[-kept:]
    assert back[:-kept] == [reserialised(answer) for answer in answers[:-kept]]


def test_a_long_conversation_is_put_back_fast() -> None:
    """30 turns of 60 kB in under a millisecond where 0.2 are usual, 500 turns that are all alike without their square."""
    remembered, own = SampledTurns(), [USER]
    for at in range(30):
        answer = said("x" * 500, '{"command" : "' + "y" * 480 + '"}', ids=f"i{at}_", reasoning="z")
        remembered.add(f"c{at}", Spelled(own).link, answer)
        own += [answer, Message("tool", "o" * 1000, tool_call_id=f"i{at}_0")]
    assert quickest(remembered, [reserialised(message) for message in own]) < 0.001
    polling, own = SampledTurns(), [USER]
    for at in range(500):
        answer = said(None, '{"command" : "status"}')
        polling.add(f"c{at}", Spelled(own).link, answer)
        own += [answer, Message("tool", "busy", tool_call_id="own0")]
    assert quickest(polling, [without_ids(reserialised(message)) for message in own]) < 0.05


def quickest(remembered: SampledTurns, wire: list[Message]) -> float:
    """Seconds of the best of ten restorations."""
    took = []
    for _ in range(10):
        began = time.perf_counter()
        remembered.restore(wire)
        took.append(time.perf_counter() - began)
    return min(took)


# --- which answer a request goes on from


def test_of_like_answers_to_the_same_messages_the_newest_of_the_requests_own_frame_is_gone_on_from() -> None:
    remembered = SampledTurns()
    for call_id, frame in (("main1", b"main"), ("main2", b"main"), ("side", b"side")):
        remembered.add(call_id, Spelled([USER]).link, said("hi"), frame=frame)
    repeats = Spelled([USER, said("hi")])

    def gone_on_from(frame: bytes) -> str | None:
        found = remembered.repeated(repeats, frame)
        return None if found is None else found.call_id

    assert (gone_on_from(b"main"), gone_on_from(b"side"), gone_on_from(b"other")) == ("main2", "side", None)
    remembered.forget("main2")
    assert gone_on_from(b"main") == "main1"
    remembered.forget("main1")
    assert gone_on_from(b"main") is None
