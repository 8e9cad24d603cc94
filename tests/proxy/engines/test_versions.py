"""What an engine says of its weights: spans of names that may be versions, and what of that is believed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines.versions import LARGEST, NamedSpan, Versions, version_of, versions
from topics.types.completion import PolicySpan


def spans(*told: tuple[str | int | None, int, int]) -> list[NamedSpan]:
    return [NamedSpan(*one) for one in told]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, Versions()),
        ([], Versions()),
        (spans(("7", 0, 9)), Versions(7)),
        (spans((7, 0, 9)), Versions(7)),
        (spans(("7", 0, 4), ("8", 4, 9)), Versions(7, (PolicySpan(7, 0, 4), PolicySpan(8, 4, 9)))),
        (spans(("7", 0, 4), ("7", 4, 9)), Versions(7)),
        (spans(("7", 0, 9), ("8", 9, 9)), Versions(7)),
        (spans(("default", 0, 9)), Versions(policy_doubt="not_ours")),
        (spans(("default", 0, 4), ("default", 4, 9)), Versions(policy_doubt="not_ours")),
        (spans(("default", 0, 4), ("7", 4, 9)), Versions(policy_doubt="mixed")),
        (spans(("a", 0, 4), ("b", 4, 9)), Versions(policy_doubt="mixed")),
        (spans(("7", 0, 8)), Versions(policy_doubt="gaps")),
        (spans(("7", 0, 10)), Versions(policy_doubt="gaps")),
        (spans(("7", 1, 9)), Versions(policy_doubt="gaps")),
        (spans(("7", 0, 4), ("8", 5, 9)), Versions(policy_doubt="gaps")),
        (spans(("7", 0, 5), ("8", 4, 9)), Versions(policy_doubt="gaps")),
        (spans(("8", 4, 9), ("7", 0, 4)), Versions(policy_doubt="gaps")),
    ],
    ids=str,
)
def test_spans_that_name_a_version_for_each_of_nine_tokens_are_believed(
    told: list[NamedSpan] | None, expected: Versions
) -> None:
    assert versions(told, 9) == expected


@pytest.mark.parametrize("name", ["", "default", "-1", "7.0", " 7", "٣", "7" * 40, str(2**63), -1, 2**63, None])
def test_a_name_of_weights_that_is_no_whole_number_is_no_version(name: str | int | None) -> None:
    assert version_of(name) is None


@given(st.integers(0, LARGEST))
def test_versions_are_versions_as_numbers_and_as_text(version: int) -> None:
    assert version_of(version) == version_of(str(version)) == version


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_what_is_told_for_each_token_is_what_comes_out_for_each_token(by_token: list[int]) -> None:
    found = versions([NamedSpan(str(version), at, at + 1) for at, version in enumerate(by_token)], len(by_token))
    assert found.policy_version == by_token[0]
    assert found.policy_doubt is None
    out = found.policy_spans or (PolicySpan(by_token[0], 0, len(by_token)),)
    assert [span.version for span in out for _ in range(span.start, span.end)] == by_token
    assert all(one.version != other.version for one, other in itertools.pairwise(out))
