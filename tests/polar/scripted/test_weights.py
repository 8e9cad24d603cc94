"""Which weights sampled a token: each token by itself says the same as the spans."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from polar.scripted.weights import FIRST, Weights

UPDATES = st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc")), max_size=6).map(
    lambda told: sorted(told, key=lambda one: one[0])
)


@example([(0, "a"), (5, "b"), (5, "a")], 0, 10, 10)
@given(UPDATES, st.integers(0, 20), st.integers(1, 16), st.integers(0, 12))
def test_a_token_is_of_what_was_served_when_it_was_sampled(
    updates: list[tuple[int, str]], began: int, took: int, tokens: int
) -> None:
    weights = Weights()
    for at, name in updates:
        weights.update(name, at)
    spans = weights.spans(began, began + took, tokens)

    def served(token: int) -> str:
        before = [name for at, name in updates if at * tokens <= began * tokens + token * took]
        return before[-1] if before else FIRST

    assert [span.version for span in spans for _ in range(span.start, span.end)] == [served(at) for at in range(tokens)]
    assert all(one.end == other.start and one.version != other.version for one, other in pairwise(spans))
    assert weights.name == (updates[-1][1] if updates else FIRST)
