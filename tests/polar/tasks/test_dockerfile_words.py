"""Words of a Dockerfile mean what they mean to Docker."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tasks.dockerfile_words import WordError, expanded

VALUES = {"A": "a", "LONG_1": "b c", "EMPTY": "", "UNSET": None}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("plain", "plain"),
        ("$A", "a"),
        ("x${A}y", "xay"),
        ("$A$A", "aa"),
        ("$A.txt", "a.txt"),
        ("$LONG_1", "b c"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY-d}", ""),
        ("${UNSET-d}", "d"),
        ("${A:-d}", "a"),
        ("${A:+d}", "d"),
        ("${EMPTY:+d}", ""),
        ("${EMPTY+d}", "d"),
        ("${A:?why}", "a"),
        ("${UNSET:-${A}}b", "ab"),
        ("${UNSET:-'}'}", "}"),
        ('${UNSET:-"$A"}', "a"),
        ("$UNSET", ""),
        (r"\$A", "$A"),
        (r"\\$A", r"\a"),
        (r"a\ b", "a b"),
        ("'$A'", "$A"),
        (r"'\$A'", r"\$A"),
        ('"$A b"', "a b"),
        (r'"\$A \" \\ \n"', r'$A " \ \n'),
        ("a'b'\"c\"", "abc"),
        ("a$", "a$"),
        ("$", "$"),
        ("$/x", "$/x"),
        ("", ""),
        ("a\\", "a"),
    ],
)
def test_a_word(word: str, value: str) -> None:
    assert expanded(word, VALUES) == value


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("$NONE", "doesn't set $NONE"),
        ("${NONE:-d}", "doesn't set $NONE"),
        ("$1", "doesn't set $1"),
        ("$$", "doesn't set $$"),
        ("${A", "isn't translated|are translated"),
        ("${A:-x", "ends before '}'"),
        ("${}", "without a name"),
        ("${A#a}", "only the forms with -, + and ?"),
        ("${A/a/b}", "only the forms with -, + and ?"),
        ("${UNSET:?must be given}", "UNSET has no value: must be given"),
        ("'a", "ends inside of quotes"),
        ('"a', "ends inside of quotes"),
        ('"a\\"', "ends inside of quotes"),
    ],
)
def test_a_word_without_a_known_meaning(word: str, reason: str) -> None:
    with pytest.raises(WordError, match=reason if "|" in reason else re.escape(reason)):
        expanded(word, VALUES)


@given(st.text())
def test_quoted_text_stays(text: str) -> None:
    escaped = re.sub(r'(["$\\])', r"\\\1", text)
    assert expanded(f'"{escaped}"', {}) == text
    assert expanded("".join(f"\\{char}" for char in text), {}) == text
    if "'" not in text:
        assert expanded(f"'{text}'", {}) == text


@given(st.text(alphabet="ab$A{}:-+?'\"\\ "))
def test_any_word_has_a_value_or_a_reason(word: str) -> None:
    with suppress(WordError):
        assert len(expanded(word, VALUES)) <= len(word) * 3
