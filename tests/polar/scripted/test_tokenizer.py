"""The tokenizer over the vocabulary that is shipped."""

from hypothesis import given
from hypothesis import strategies as st

from polar.scripted.tokenizer import SPECIALS, VOCABULARY_FILE
from tests.polar.scripted.conversations import TOKENIZER


@given(st.text() | st.lists(st.sampled_from([*SPECIALS, "a", "\n", " "])).map("".join))
def test_every_text_comes_back_whole_and_encodes_to_no_special_token(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(TOKENIZER.special_ids.values())
    assert TOKENIZER.decode(ids) == text


def test_the_shipped_vocabulary_is_small_and_numbered_without_gaps() -> None:
    assert TOKENIZER.size == 4096
    assert VOCABULARY_FILE.stat().st_size < 300_000
    assert [TOKENIZER.bytes_of(TOKENIZER.special_ids[name]).decode() for name in SPECIALS] == list(SPECIALS)
