"""What reaches a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.cli.terminal_text import visible


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_steers_a_terminal_comes_out(text: str) -> None:
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    left = {char for char in visible(text) if unicodedata.category(char) in steering}
    assert left <= set("\n\t\u200c\u200d")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], include_characters="\n\t")))
def test_what_can_be_read_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b2J", r"\x9b2J"),
        ("over\rwritten", r"over\rwritten"),
        ("\u202eevil", r"\u202eevil"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_steers_is_shown_as_its_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
