"""Halves of surrogate pairs in JSON: a harness that cuts text within an emoji writes them as escapes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.codec import REPAIRED_BYTES, with_whole_pairs

PIECES = ("\ud83d", "\ude00", "\ud800", "\udfff", "😀", "\\", "a", "u", "\n", '"')
LITERAL = "\\ud83d"
"""Text of a program, not an escape."""


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_each_half_becomes_one_replacement_and_all_else_stays(text: str) -> None:
    body = json.dumps({"text": text}).encode()
    read = json.loads(body)["text"]  # Python's own reader joins halves that stand side by side
    expected = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in read)
    assert json.loads(with_whole_pairs(body))["text"] == expected


@given(st.lists(st.sampled_from((*PIECES, LITERAL)), max_size=30).map("".join).filter(lambda text: text.isprintable()))
def test_a_body_without_halves_is_not_changed(text: str) -> None:
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    assert with_whole_pairs(body) == body


def test_a_large_body_is_not_searched() -> None:
    body = b'"' + b"\\ud83d" * (REPAIRED_BYTES // 6 + 1) + b'"'
    assert with_whole_pairs(body) == body
