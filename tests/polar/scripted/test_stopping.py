"""Where a stop string ends an answer."""

from hypothesis import given
from hypothesis import strategies as st

from polar.scripted.answer import AnswerParser, Delta, joined
from polar.scripted.conversation import Turn
from polar.scripted.stopping import before, stop_in
from polar.scripted.template import ChatTemplate
from polar.scripted.tokenizer import Tokenizer

TOKENIZER = Tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
PARSER = AnswerParser(TOKENIZER)
TEXTS = st.text(st.sampled_from("ab é🎉\n<"), max_size=30)
STOPS = st.lists(st.text(st.sampled_from("ab é🎉\n"), min_size=1, max_size=3), min_size=1, max_size=3)


@given(text=TEXTS, stops=STOPS)
def test_the_text_ends_before_the_string_and_the_tokens_with_it(text: str, stops: list[str]) -> None:
    ids = TEMPLATE.encode_answer(Turn("assistant", text)).tolist()
    deltas = PARSER.deltas(ids)
    stopped = stop_in(deltas, stops)
    if stopped is None:
        assert not any(stop in text for stop in stops)
        return
    count, stop = stopped
    told = PARSER.deltas(ids[:count])
    shown = joined(before(told, stop)).text
    sampled = joined(deltas[:count]).text
    assert sampled.startswith(shown + stop)
    assert not any(other in joined(deltas[: count - 1]).text for other in stops), "it was there a token before"
    assert shown == text[: text.index(stop)]


def test_what_is_no_text_stops_nothing() -> None:
    deltas = [Delta(reasoning="END"), Delta(text="EN"), Delta(text="D."), Delta(text="x")]
    assert stop_in(deltas, ["END"]) == (3, "END")
    assert before(deltas[:3], "END") == [Delta(reasoning="END"), Delta(), Delta()]
