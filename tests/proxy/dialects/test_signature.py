"""A thought comes back out of its signature, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.signature import PREFIX, seal, unseal


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_thought_comes_back_whole(thought: str) -> None:
    assert unseal(seal(thought)) == thought


@given(st.text().filter(lambda text: not text.startswith(PREFIX)))
def test_what_is_no_signature_of_ours_is_no_thought(text: str) -> None:
    assert unseal(text) is None


@pytest.mark.parametrize(
    "spoilt", [None, PREFIX + "?", PREFIX + "abc", PREFIX + "/w==", "skip_thought_signature_validator"]
)
def test_a_spoilt_signature_is_no_thought(spoilt: str | None) -> None:
    assert unseal(spoilt) is None


def test_a_signature_unfolds_to_less_than_itself() -> None:
    assert len(seal("a" * 10_000)) > 10_000
