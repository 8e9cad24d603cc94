"""All coordinators share a pool alike, without asking one another."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.coordinator.scheduling.shares import PRIORITIES, Peers, backlogs, shares
from topics.types.session import Stage
from topics.workers import Backlog, Heartbeat

names = st.sampled_from(["c1", "c2", "c3", "c4"])
demands = st.dictionaries(names, st.dictionaries(st.sampled_from([0, 5, 100]), st.integers(0, 50)))


def beat(name: str, *told: Backlog, staged: int = 0, leaving: bool = False) -> Heartbeat:
    return Heartbeat(name, "coordinator", "h", 1, backlogs=list(told), staged={"default": staged}, leaving=leaving)


@given(st.integers(0, 64), demands)
def test_shares_sum_to_the_slots_and_one_for_each_at_most(slots: int, asked: dict[str, dict[int, int]]) -> None:
    given_out = shares(slots, asked)
    totals = {name: sum(each.values()) for name, each in asked.items()}
    assert sum(given_out.values()) <= slots + len([name for name in totals if totals[name]])
    assert sum(given_out.values()) >= min(slots, sum(totals.values())), "none idles while someone demands it"
    for name, share in given_out.items():
        assert share <= totals[name]
        assert share >= 1 or not totals[name] or not slots, "each with a backlog has one"


@given(st.integers(0, 64), demands)
def test_a_lower_priority_gets_what_the_higher_ones_leave_or_one(slots: int, asked: dict[str, dict[int, int]]) -> None:
    given_out = shares(slots, asked)
    above = sum(count for each in asked.values() for priority, count in each.items() if priority == 100)
    for name, each in asked.items():
        if not each.get(100):
            assert given_out[name] <= max(1, slots - above)


@given(st.integers(0, 64), demands, st.randoms(use_true_random=False))
def test_every_coordinator_comes_to_the_same(
    slots: int, asked: dict[str, dict[int, int]], shuffled: random.Random
) -> None:
    """Each reads the same heartbeats, and keeps them in an order of its own."""
    beats = [
        beat(name, *(Backlog(Stage.RUN, "default", priority, count) for priority, count in each.items()))
        for name, each in asked.items()
    ]
    expected = shares(slots, asked)
    for name in asked:
        peers = Peers(name)
        shuffled.shuffle(beats)
        for each in beats:
            peers.beat(each)
        assert peers.share(Stage.RUN, "default", slots) == expected[name]


def test_demands_of_one_priority_are_served_in_proportion() -> None:
    assert shares(12, {"a": {0: 90}, "b": {0: 30}, "c": {0: 1}}) == {"a": 9, "b": 3, "c": 1}
    assert shares(12, {"a": {0: 90}, "b": {100: 10}}) == {"a": 2, "b": 10}


def test_what_is_in_hand_is_of_the_share_and_the_dead_and_the_leaving_have_none() -> None:
    peers = Peers("a")
    peers.beat(beat("a", Backlog(Stage.RUN, "default", 0, 10, held=8)))
    assert peers.is_alone
    peers.beat(beat("b", Backlog(Stage.RUN, "default", 0, 18)))
    assert (peers.is_alone, peers.share(Stage.RUN, "default", 8)) == (False, 4)
    peers.beat(beat("b", Backlog(Stage.RUN, "default", 0, 18), leaving=True))
    assert (peers.is_alone, peers.share(Stage.RUN, "default", 8)) == (True, 8)
    peers.beat(beat("c", Backlog(Stage.RUN, "default", 0, 18)))
    peers.lost("c")
    assert peers.is_alone


def test_a_worker_is_no_coordinator() -> None:
    peers = Peers("a")
    peers.beat(Heartbeat("w", "worker", "h", 1))
    assert peers.is_alone


def test_staging_is_shared_by_what_is_staged_or_wants_to_be() -> None:
    peers = Peers("a")
    peers.beat(beat("a", Backlog(Stage.INIT, "default", 0, 5, held=1), Backlog(Stage.RUN, "default", 0, 2, held=8)))
    peers.beat(beat("b", Backlog(Stage.INIT, "default", 0, 24), staged=3))
    assert peers.share_of_staging("default", 8) == 2
    assert peers.staged_elsewhere("default") == 3


@given(st.dictionaries(st.integers(0, 100), st.integers(1, 9)), st.dictionaries(st.integers(0, 100), st.integers(1, 9)))
def test_a_heartbeat_tells_all_sessions_in_few_entries(waiting: dict[int, int], held: dict[int, int]) -> None:
    told = backlogs(Stage.RUN, "default", waiting, held)
    assert len(told) <= PRIORITIES
    assert sum(each.sessions for each in told) == sum(waiting.values())
    assert sum(each.held for each in told) == sum(held.values())
    known = sorted({*waiting, *held}, reverse=True)
    assert [each.priority for each in told] == known[:PRIORITIES]
    exact = Counter(waiting)
    assert all(each.sessions == exact[each.priority] for each in told[: PRIORITIES - 1])
