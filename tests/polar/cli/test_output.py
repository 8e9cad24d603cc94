"""Tables on an ordinary terminal, and text that can't control it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polar.cli import output
from polar.cli.output import escaped, json_line

COLUMNS = ["session", "status", ">reward", "error"]
CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = set("\u200c\u200d")


def controls(text: str) -> set[str]:
    return {char for char in text if unicodedata.category(char) in CONTROLS}


@given(st.text(st.characters(exclude_categories=[])))
def test_no_control_character_is_printed(text: str) -> None:
    assert controls(escaped(text)) <= {"\n", "\t"} | JOINERS


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("\x1b[2J\x7f\x9b2J\u202eevil\U000e0041")
def test_json_on_a_line_is_the_same_document_without_control_characters(text: str) -> None:
    line = json_line({text: [text]})
    assert controls(line) <= JOINERS
    assert json.loads(line) == {text: [text]}


def test_a_json_document_is_printable_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    document = ["\x7f\x9b2J\u202e\U000e0041é"]
    output.print_json(document)
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert controls(printed) == {"\n"}
    assert json.loads(printed) == document


def test_a_line_of_text_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("pool \x1b]0;evil\x07")
    assert capsys.readouterr().out == "pool \\x1b]0;evil\\x07\n"


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], include_characters="\n\t")))
def test_readable_text_is_unchanged(text: str) -> None:
    assert escaped(text) == text


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
def test_control_characters_are_shown_as_its_escape(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_narrow_table_cuts_no_id_short(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", 50)
    long_id = "intervals-7a60fb.0"
    output.show(COLUMNS, [[long_id, "TIMED_OUT", None, "run budget/timeout: the harness worked longer"]])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 50
    assert all(whole in printed for whole in (long_id, "TIMED_OUT", "reward"))
    assert "…" not in printed
