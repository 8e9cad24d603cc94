"""Pauses grow by their factor to the longest one, for any number of failures."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.waiting.backoff import Backoff

BACKOFFS = st.builds(
    lambda first, span, factor, jitter: Backoff(first, first * span, factor, jitter),
    st.floats(0.001, 10),
    st.floats(1, 1e4),
    st.floats(1.1, 10),
    st.floats(0, 0.5),
)


@given(BACKOFFS, st.integers(1, 100))
def test_pauses_grow_by_the_factor_up_to_the_longest(backoff: Backoff, failures: int) -> None:
    pauses = [backoff.pause_s(failures) for failures in range(1, failures + 1)]
    assert pauses[0] == pytest.approx(backoff.first_s)
    assert all(
        after == pytest.approx(min(before * backoff.factor, backoff.longest_s)) for before, after in pairwise(pauses)
    )


@given(BACKOFFS, st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_pause_stays_within_its_jitter_after_any_number_of_failures(
    backoff: Backoff, failures: int, chance: float
) -> None:
    middle = backoff.pause_s(failures)
    assert backoff.pause_s(10**6) == pytest.approx(backoff.longest_s)
    assert middle * (1 - backoff.jitter) <= backoff.pause_s(failures, chance) * (1 + 1e-9)
    assert backoff.pause_s(failures, chance) <= middle * (1 + backoff.jitter) * (1 + 1e-9)
