"""Slots are lent once, to those who want them: by priority, evenly among users, and INIT no further than the run slots."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.coordinator.scheduling.assignment import Credit, Free, Lent, Line, Room, Want, lend
from topics.types.session import Stage

stages = st.sampled_from(list(Stage))
pools = st.sampled_from(["default", "gpu"])
users = st.sampled_from(["", "ann", "bob"])
priorities = st.sampled_from([0, 5, 100])
workers = st.builds(
    Free,
    st.sampled_from(["w1", "w2", "w3"]),
    stages,
    pools,
    st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple),
    st.integers(0, 5),
)
free_slots = st.lists(workers, max_size=6, unique_by=lambda w: (w.worker_id, w.stage, w.pool))
wanted = st.lists(
    st.builds(Want, st.integers(0, 3), stages, pools, priorities, users, st.integers(0, 9)),
    max_size=8,
    unique_by=lambda w: (w.partition, w.stage, w.pool, w.priority, w.user),
)
rooms = st.builds(Room, st.integers(-3, 10), st.integers(-3, 12), st.dictionaries(priorities, st.integers(0, 5)))
lines = st.tuples(stages, pools)
bounds = st.builds(
    Credit,
    st.dictionaries(lines, st.dictionaries(users, st.integers(0, 9))),
    st.dictionaries(lines, st.integers(-2, 6)),
    st.dictionaries(pools, rooms),
)


def line_of(lent: Lent) -> Line:
    return lent.slot.stage, lent.slot.pool


@given(free_slots, wanted, bounds)
def test_no_slot_is_lent_twice_nor_past_what_is_wanted_and_none_idles(
    free: list[Free], wants: list[Want], credit: Credit
) -> None:
    lent = lend(free, wants, credit)
    by_worker = Counter((x.slot.worker_id, *line_of(x)) for x in lent)
    slots = {(w.worker_id, w.stage, w.pool): w for w in free}
    assert all(count <= slots[key].slots for key, count in by_worker.items())
    assert all(x.slot.queue_partition in slots[x.slot.worker_id, *line_of(x)].partitions for x in lent), (
        "a ticket goes to a partition that its worker reads"
    )
    served = Counter((x.partition, *line_of(x), x.slot.priority, x.slot.user) for x in lent)
    asked = {(w.partition, w.stage, w.pool, w.priority, w.user): w.sessions for w in wants}
    assert all(count <= asked[key] for key, count in served.items())
    for line in {(w.stage, w.pool) for w in wants}:
        available = sum(w.slots for w in free if (w.stage, w.pool) == line and w.partitions)
        available = min(available, max(0, credit.shares.get(line, available)))
        needed = sum(w.sessions for w in wants if (w.stage, w.pool) == line)
        given_out = sum(line_of(x) == line for x in lent)
        if line[0] is not Stage.INIT:
            assert given_out == min(available, needed), "no slot idles while someone wants it"
        else:
            assert given_out <= min(available, needed)


@given(free_slots, wanted, bounds)
def test_priority_is_never_inverted(free: list[Free], wants: list[Want], credit: Credit) -> None:
    lent = lend(free, wants, credit)
    for line in {(w.stage, w.pool) for w in wants}:
        order = [x.slot.priority for x in lent if line_of(x) == line]
        assert order == sorted(order, reverse=True)
        for lowest in order[-1:]:
            higher = sum(w.sessions for w in wants if (w.stage, w.pool) == line and w.priority > lowest)
            assert sum(p > lowest for p in order) == higher or line[0] is Stage.INIT, (
                "the higher ones have all they want"
            )


@given(free_slots, wanted, bounds)
def test_no_pool_is_staged_past_its_room(free: list[Free], wants: list[Want], credit: Credit) -> None:
    lent = lend(free, wants, credit)
    for pool in ("default", "gpu"):
        staged = [x.slot.priority for x in lent if line_of(x) == (Stage.INIT, pool)]
        room = credit.rooms.get(pool, Room(0, 0, {}))
        if staged:
            assert sum(room.staged.values()) + len(staged) <= room.most
        for priority in set(staged):
            rivals = sum(count for at, count in room.staged.items() if at >= priority)
            assert rivals + sum(at >= priority for at in staged) <= room.limit


@given(
    st.dictionaries(users, st.integers(1, 20), min_size=1),
    st.integers(0, 40),
    st.dictionaries(users, st.integers(0, 9)),
)
def test_users_come_out_even(sessions: dict[str, int], slots: int, in_hand: dict[str, int]) -> None:
    wants = [Want(n % 3, Stage.RUN, "default", 0, user, count) for n, (user, count) in enumerate(sessions.items())]
    credit = Credit({(Stage.RUN, "default"): in_hand}, {}, {})
    lent = lend([Free("w", Stage.RUN, "default", (0,), slots)], wants, credit)
    got = Counter(x.slot.user for x in lent)
    for one in sessions:
        for other in sessions:
            if got[one] and got[other] < sessions[other]:
                assert in_hand.get(one, 0) + got[one] <= in_hand.get(other, 0) + got[other] + 1


def test_a_users_partitions_take_turns() -> None:
    wants = [Want(partition, Stage.RUN, "default", 0, "", 9) for partition in (2, 0, 1)]
    lent = lend([Free("w", Stage.RUN, "default", (0,), 5)], wants, Credit({}, {}, {}))
    assert [x.partition for x in lent] == [2, 0, 1, 2, 0]


def test_workers_take_turns() -> None:
    free = [Free(worker, Stage.RUN, "default", (0, 1), 4) for worker in ("w1", "w2")]
    lent = lend(free, [Want(0, Stage.RUN, "default", 0, "", 4)], Credit({}, {}, {}))
    assert Counter(x.slot.worker_id for x in lent) == {"w1": 2, "w2": 2}


def test_what_is_urgent_passes_those_that_are_staged_by_the_init_slots() -> None:
    room = Room(limit=8, most=10, staged={0: 8})
    assert (room.left(0), room.left(100)) == (0, 2)
    assert Room(8, 10, {0: 2, 100: 8}).left(100) == 0, "its equals count"
