"""All coordinators compute the same shares of a pool, without asking one another."""

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


def beat(name: str, *backlogs: Backlog, staged: int = 0, leaving: bool = False) -> Heartbeat:
    return Heartbeat(name, "coordinator", "h", 1, backlogs=list(backlogs), staged={"default": staged}, leaving=leaving)


@given(st.integers(0, 64), demands)
def test_shares_sum_to_the_slots_and_one_for_each_at_most(slots: int, demanded: dict[str, dict[int, int]]) -> None:
    shared = shares(slots, demanded)
    totals = {name: sum(each.values()) for name, each in demanded.items()}
    assert sum(shared.values()) <= slots + len([name for name in totals if totals[name]])
    assert sum(shared.values()) >= min(slots, sum(totals.values())), "no slot idles while a session demands it"
    for name, share in shared.items():
        assert share <= totals[name]
        assert share >= 1 or not totals[name] or not slots, "each with a backlog has one"


@given(st.integers(0, 64), demands)
def test_a_lower_priority_gets_what_the_higher_ones_leave_or_one(
    slots: int, demanded: dict[str, dict[int, int]]
) -> None:
    shared = shares(slots, demanded)
    above = sum(count for each in demanded.values() for priority, count in each.items() if priority == 100)
    for name, each in demanded.items():
        if not each.get(100):
            assert shared[name] <= max(1, slots - above)


@given(st.integers(0, 64), demands, st.randoms(use_true_random=False))
def test_every_coordinator_comes_to_the_same(
    slots: int, demanded: dict[str, dict[int, int]], shuffled: random.Random
) -> None:
    """Each reads the same heartbeats, in any order."""
    beats = [
        beat(name, *(Backlog(Stage.RUN, "default", priority, count) for priority, count in each.items()))
        for name, each in demanded.items()
    ]
    expected = shares(slots, demanded)
    for name in demanded:
        peers = Peers(name)
        shuffled.shuffle(beats)
        for each in beats:
            peers.on_heartbeat(each)
        assert peers.share(Stage.RUN, "default", slots) == expected[name]


def test_demands_of_one_priority_are_served_in_proportion() -> None:
    assert shares(12, {"a": {0: 90}, "b": {0: 30}, "c": {0: 1}}) == {"a": 9, "b": 3, "c": 1}
    assert shares(12, {"a": {0: 90}, "b": {100: 10}}) == {"a": 2, "b": 10}


def test_active_sessions_use_up_the_share_and_dead_and_leaving_coordinators_have_none() -> None:
    peers = Peers("a")
    peers.on_heartbeat(beat("a", Backlog(Stage.RUN, "default", 0, 10, held=8)))
    assert peers.is_alone
    peers.on_heartbeat(beat("b", Backlog(Stage.RUN, "default", 0, 18)))
    assert (peers.is_alone, peers.share(Stage.RUN, "default", 8)) == (False, 4)
    peers.on_heartbeat(beat("b", Backlog(Stage.RUN, "default", 0, 18), leaving=True))
    assert (peers.is_alone, peers.share(Stage.RUN, "default", 8)) == (True, 8)
    peers.on_heartbeat(beat("c", Backlog(Stage.RUN, "default", 0, 18)))
    peers.on_worker_lost("c")
    peers.on_heartbeat(Heartbeat("w", "worker", "h", 1))
    assert peers.is_alone, "a worker is no coordinator"


def test_staging_is_shared_by_sessions_that_are_staged_or_wait_to_be() -> None:
    peers = Peers("a")
    peers.on_heartbeat(
        beat("a", Backlog(Stage.INIT, "default", 0, 5, held=1), Backlog(Stage.RUN, "default", 0, 2, held=8))
    )
    peers.on_heartbeat(beat("b", Backlog(Stage.INIT, "default", 0, 24), staged=3))
    assert peers.share_of_staging("default", 8) == 2
    assert peers.staged_elsewhere("default") == 3


@given(st.dictionaries(st.integers(0, 100), st.integers(1, 9)), st.dictionaries(st.integers(0, 100), st.integers(1, 9)))
def test_a_heartbeat_reports_all_sessions_in_few_entries(waiting: dict[int, int], active: dict[int, int]) -> None:
    entries = backlogs(Stage.RUN, "default", waiting, active)
    assert len(entries) <= PRIORITIES
    assert sum(each.sessions for each in entries) == sum(waiting.values())
    assert sum(each.held for each in entries) == sum(active.values())
    known = sorted({*waiting, *active}, reverse=True)
    assert [each.priority for each in entries] == known[:PRIORITIES]
    exact = Counter(waiting)
    assert all(each.sessions == exact[each.priority] for each in entries[: PRIORITIES - 1])
