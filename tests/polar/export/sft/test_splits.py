"""Splits: by task, each repository alike, the same each time."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.export.sft import splits
from topics.types.errors import InputError

TASKS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.sampled_from([None, "a/b", "c/d"]), max_size=60)
SHARES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda parts: {f"s{number}": Fraction(part, sum(parts)) for number, part in enumerate(parts)}
)


@given(TASKS, SHARES, st.integers(), st.randoms())
def test_any_tasks(tasks: dict[str, str | None], shares: dict[str, Fraction], seed: int, random: Any) -> None:
    found = splits.assign(tasks, shares, seed)
    assert found.keys() == tasks.keys()
    again = dict(random.sample(sorted(tasks.items(), key=str), len(tasks)))
    assert splits.assign(again, shares, seed) == found, "it depends on the order of the tasks"
    for repository in ("all", *set(tasks.values())):
        of_it = [task for task in tasks if repository in ("all", tasks[task])]
        counts = Counter(found[task] for task in of_it)
        for split, share in shares.items():
            assert abs(counts[split] - share * len(of_it)) < len(shares), (repository, split)


def test_another_seed_is_another_division() -> None:
    tasks = dict.fromkeys((f"t{number}" for number in range(40)), "a/b")
    halves = splits.parse("train=0.5,val=0.5")
    assert splits.assign(tasks, halves, 1) != splits.assign(tasks, halves, 2)


def test_shares_are_exact() -> None:
    assert splits.parse("train=0.7, val=0.2,test=.1") == {
        "train": Fraction(7, 10),
        "val": Fraction(1, 5),
        "test": Fraction(1, 10),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected names"),
        ("train", "expected names"),
        ("train=0,val=1", "expected names"),
        ("../x=1", "expected names"),
        ("train=0.9", "add up to 0.9"),
        ("a=0.5,a=0.5", "names a twice"),
    ],
)
def test_wrong_shares_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        splits.parse(text)
