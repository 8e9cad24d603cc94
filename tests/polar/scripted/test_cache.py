"""What a session's earlier calls have left of a prompt."""

from __future__ import annotations  # `array[int]` is no expression before Python 3.12

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.scripted import cache
from polar.scripted.cache import BLOCK, BRANCHES, PrefixCache

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=80)


def tokens(*counts: int) -> array[int]:
    """So many of token 0, then so many of 1, …"""
    return array("i", [token for token, count in enumerate(counts) for _ in range(count)])


@given(calls=st.lists(TOKENS, max_size=BRANCHES), prompt=TOKENS)
def test_whole_blocks_of_the_longest_shared_beginning_are_there(calls: list[list[int]], prompt: list[int]) -> None:
    known = PrefixCache()
    for call in calls:
        known.keep(("t.0", None), array("i", call[:-1]), call[-1:])
    shared = max(
        (next((at for at, (a, b) in enumerate(zip(call, prompt, strict=False)) if a != b), min(len(call), len(prompt))))
        for call in [*calls, []]
    )
    assert known.hit(("t.0", None), array("i", prompt)) == min(shared, len(prompt) - 1) // BLOCK * BLOCK
    assert known.hit(("t.1", None), array("i", prompt)) == 0
    assert known.hit(("t.0", "policy-8"), array("i", prompt)) == 0


def test_a_conversation_and_its_sub_agents_are_kept_beside_each_other() -> None:
    known = PrefixCache()
    for turn in range(1, 20):
        known.keep(("t.0", None), tokens(16, 16 * turn), [9])
        known.keep(("t.0", None), tokens(8, 0, 16 * turn), [9])
    assert known.hit(("t.0", None), tokens(16, 16 * 20)) == 16 + 16 * 19
    assert known.hit(("t.0", None), tokens(8, 0, 16 * 20)) == 16 * 19


def test_sessions_asked_for_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "REMEMBERED_TOKENS", 100)
    known = PrefixCache()
    for session in ("a", "b", "a", "c"):
        known.keep((session, None), tokens(39), [0])
    assert [known.hit((session, None), tokens(40)) for session in ("a", "b", "c")] == [32, 0, 32]
