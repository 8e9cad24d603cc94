"""Parsing of sampled ids, and where a stop string ends an answer."""

from hypothesis import given
from hypothesis import strategies as st

from polar.scripted.answer import Delta, as_turn, joined, stop_in, text_before
from polar.scripted.conversation import Call, Turn
from tests.polar.scripted.conversations import ANSWERS, PARSER, TEMPLATE, TOKENIZER

TEXTS = st.text(st.sampled_from("ab é🎉\n<"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("ab é🎉\n"), min_size=1, max_size=3), min_size=1, max_size=3)


@given(ANSWERS, st.integers(1, 5))
def test_an_answer_parses_back_to_its_turn_in_groups_of_any_size(turn: Turn, size: int) -> None:
    deltas = PARSER.deltas(TEMPLATE.encode_answer(turn))
    groups = [joined(deltas[start : start + size]) for start in range(0, len(deltas), size)]
    assert joined(groups) == joined(deltas)
    assert as_turn(joined(deltas)) == turn


@given(ANSWERS, st.data())
def test_a_cut_answer_yields_whole_calls_only_and_a_delta_for_each_token(turn: Turn, data: st.DataObject) -> None:
    ids = TEMPLATE.encode_answer(turn)
    cut = ids[: data.draw(st.integers(0, len(ids) - 1))]
    deltas = PARSER.deltas(cut)
    calls = as_turn(joined(deltas)).calls
    assert len(deltas) == len(cut)
    assert turn.calls[: len(calls)] == calls


def test_a_call_that_is_not_whole_or_in_another_form_is_text_markers_and_all() -> None:
    ids = TEMPLATE.encode_answer(Turn("assistant", "Look:", "", (Call("read", '{"path": "a"}'),)))[:-3]
    text = 'Look:\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}'
    assert joined(PARSER.deltas(ids)) == Delta(text=text)
    special = TOKENIZER.special_ids
    other = [special["<tool_call>"], *TOKENIZER.encode("read(a)"), special["</tool_call>"], special["<|im_end|>"]]
    assert joined(PARSER.deltas(other)) == Delta(text="<tool_call>read(a)</tool_call>")


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    ids = TOKENIZER.encode("🎉")
    assert len(ids) > 1
    assert [delta.text for delta in PARSER.deltas(ids)] == [*[""] * (len(ids) - 1), "🎉"]


@given(text=TEXTS, stops=STOPS)
def test_the_text_ends_before_the_string_and_the_tokens_with_it(text: str, stops: list[str]) -> None:
    ids = TEMPLATE.encode_answer(Turn("assistant", text)).tolist()
    deltas = PARSER.deltas(ids)
    stopped = stop_in(deltas, stops)
    if stopped is None:
        assert not any(stop in text for stop in stops)
        return
    count, stop = stopped
    sampled_deltas = PARSER.deltas(ids[:count])
    shown = joined(text_before(sampled_deltas, stop)).text
    sampled = joined(deltas[:count]).text
    assert sampled.startswith(shown + stop)
    assert not any(other in joined(deltas[: count - 1]).text for other in stops), "it was there a token before"
    assert shown == text[: text.index(stop)]


def test_only_text_contains_stop_strings() -> None:
    deltas = [Delta(reasoning="END"), Delta(text="EN"), Delta(text="D."), Delta(text="x")]
    assert stop_in(deltas, ["END"]) == (3, "END")
    assert text_before(deltas[:3], "END") == [Delta(reasoning="END"), Delta(), Delta()]
