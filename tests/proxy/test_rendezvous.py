"""Keys and names: everyone agrees, and who comes or goes moves only what is its own."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxy.rendezvous import ranked

NAMES = st.lists(st.text(max_size=8), unique=True, max_size=8)


@given(key=st.text(), names=NAMES, data=st.data())
def test_the_order_of_the_names_asked_about_changes_nothing(key: str, names: list[str], data: st.DataObject) -> None:
    assert ranked(key, data.draw(st.permutations(names))) == ranked(key, names + names)
    assert sorted(ranked(key, names)) == sorted(names)


@given(key=st.text(), names=NAMES, gone=st.integers(min_value=0))
def test_a_name_that_goes_leaves_the_others_in_their_order(key: str, names: list[str], gone: int) -> None:
    ranks = ranked(key, names)
    left = [name for position, name in enumerate(names) if position != gone % len(names)]
    assert ranked(key, left) == [name for name in ranks if name in left]


def test_keys_are_shared_out_evenly() -> None:
    names = [f"http://10.0.0.{number}:8000" for number in range(4)]
    firsts = Counter(ranked(f"session-{number}", names)[0] for number in range(8000))
    assert all(1800 < firsts[name] < 2200 for name in names)


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    assert ranked("task.0", ["a", "b", "c", "d"]) == ["a", "d", "c", "b"]
