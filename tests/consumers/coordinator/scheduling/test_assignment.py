"""Slots are assigned once, on request: by priority, evenly among users, and INIT within the staging limit."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.coordinator.scheduling import assignment
from consumers.coordinator.scheduling.assignment import (
    Assignment,
    Limits,
    SlotRequest,
    StagePool,
    StagingLimit,
    WorkerSlots,
)
from topics.types.session import Stage

stages = st.sampled_from(list(Stage))
pools = st.sampled_from(["default", "gpu"])
users = st.sampled_from(["", "ann", "bob"])
priorities = st.sampled_from([0, 5, 100])
workers = st.builds(
    WorkerSlots,
    st.sampled_from(["w1", "w2", "w3"]),
    stages,
    pools,
    st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple),
    st.integers(0, 5),
)
free_slots = st.lists(workers, max_size=6, unique_by=lambda w: (w.worker_id, w.stage, w.pool))
slot_requests = st.lists(
    st.builds(SlotRequest, st.integers(0, 3), stages, pools, priorities, users, st.integers(0, 9)),
    max_size=8,
    unique_by=lambda r: (r.partition, r.stage, r.pool, r.priority, r.user),
)
staging = st.builds(
    StagingLimit, st.integers(-3, 10), st.integers(-3, 12), st.dictionaries(priorities, st.integers(0, 5))
)
keys = st.tuples(stages, pools)
all_limits = st.builds(
    Limits,
    st.dictionaries(keys, st.dictionaries(users, st.integers(0, 9))),
    st.dictionaries(keys, st.integers(-2, 6)),
    st.dictionaries(pools, staging),
)


def key_of(each: WorkerSlots | SlotRequest | Assignment) -> StagePool:
    slots = each.slot if isinstance(each, Assignment) else each
    return slots.stage, slots.pool


@given(free_slots, slot_requests, all_limits)
def test_slots_go_once_to_requests_in_order_of_priority_within_all_limits(
    free: list[WorkerSlots], requests: list[SlotRequest], limits: Limits
) -> None:
    assigned = assignment.assign(free, requests, limits)
    slots = {(w.worker_id, *key_of(w)): w for w in free}
    for worker, count in Counter((a.slot.worker_id, *key_of(a)) for a in assigned).items():
        assert count <= slots[worker].slots
    for each in assigned:
        reads = slots[each.slot.worker_id, *key_of(each)].partitions
        assert each.slot.queue_partition in reads, "a ticket goes to a partition that its worker reads"
    served = Counter((a.partition, *key_of(a), a.slot.priority, a.slot.user) for a in assigned)
    requested = {(r.partition, *key_of(r), r.priority, r.user): r.sessions for r in requests}
    assert all(count <= requested[request] for request, count in served.items())
    for key in {key_of(r) for r in requests}:
        is_init = key[0] is Stage.INIT
        available = sum(w.slots for w in free if key_of(w) == key and w.partitions)
        available = min(available, max(0, limits.shares.get(key, available)))
        needed = sum(r.sessions for r in requests if key_of(r) == key)
        order = [a.slot.priority for a in assigned if key_of(a) == key]
        assert len(order) <= min(available, needed)
        assert is_init or len(order) == min(available, needed), "no slot idles while a session requests it"
        assert order == sorted(order, reverse=True)
        for lowest in order[-1:]:
            higher = sum(r.sessions for r in requests if key_of(r) == key and r.priority > lowest)
            assert is_init or sum(p > lowest for p in order) == higher, "higher priorities have all they request"
        if is_init and order:
            limit = limits.staging[key[1]]
            assert sum(limit.staged.values()) + len(order) <= limit.total
            for priority in set(order):
                rivals = sum(count for staged, count in limit.staged.items() if staged >= priority)
                assert rivals + sum(p >= priority for p in order) <= limit.limit


@given(
    st.dictionaries(users, st.integers(1, 20), min_size=1),
    st.integers(0, 40),
    st.dictionaries(users, st.integers(0, 9)),
)
def test_users_end_even(sessions: dict[str, int], slots: int, active: dict[str, int]) -> None:
    requests = [
        SlotRequest(n % 3, Stage.RUN, "default", 0, user, count) for n, (user, count) in enumerate(sessions.items())
    ]
    limits = Limits({(Stage.RUN, "default"): active}, {}, {})
    assigned = assignment.assign([WorkerSlots("w", Stage.RUN, "default", (0,), slots)], requests, limits)
    served = Counter(a.slot.user for a in assigned)
    for one in sessions:
        for other in sessions:
            if served[one] and served[other] < sessions[other]:
                assert active.get(one, 0) + served[one] <= active.get(other, 0) + served[other] + 1


def test_workers_and_the_partitions_of_a_user_take_turns() -> None:
    free = [WorkerSlots(worker, Stage.RUN, "default", (0, 1), 3) for worker in ("w1", "w2")]
    requests = [SlotRequest(partition, Stage.RUN, "default", 0, "", 9) for partition in (2, 0, 1)]
    assigned = assignment.assign(free, requests, Limits({}, {(Stage.RUN, "default"): 4}, {}))
    assert [(a.partition, a.slot.worker_id) for a in assigned] == [(2, "w1"), (0, "w2"), (1, "w1"), (2, "w2")]


def test_urgent_sessions_pass_staged_ones_by_the_init_slots() -> None:
    limit = StagingLimit(limit=8, total=10, staged={0: 8})
    assert (limit.remaining(0), limit.remaining(100)) == (0, 2)
    assert StagingLimit(8, 10, {0: 2, 100: 8}).remaining(100) == 0, "sessions of equal priority count"
