"""Slots are lent once, to those who want them, and INIT no further than the run slots."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from consumers.coordinator.commands import ReleaseTicket, SlotLent
from consumers.coordinator.lend import CLAIM_UNSEEN_MS, Free, Ledger, Lent, Want, lend
from consumers.coordinator.state import TICKET_MS
from polar.types.session import Stage
from topics.workers import Heartbeat, StageSlots

stages = st.sampled_from(list(Stage))
pools = st.sampled_from(["default", "gpu"])
workers = st.builds(
    Free,
    st.sampled_from(["w1", "w2", "w3"]),
    stages,
    pools,
    st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple),
    st.integers(0, 5),
)
wants = st.builds(Want, st.integers(0, 3), stages, pools, st.integers(0, 9))


@given(
    st.lists(workers, max_size=6, unique_by=lambda w: (w.worker_id, w.stage, w.pool)),
    st.lists(wants, max_size=8, unique_by=lambda w: (w.partition, w.stage, w.pool)),
    st.dictionaries(pools, st.integers(-3, 10)),
)
def test_no_slot_is_lent_twice_and_nobody_gets_more_than_wanted(
    free: list[Free], wanted: list[Want], room: dict[str, int]
) -> None:
    lent = lend(free, wanted, room)
    by_worker = Counter((x.slot.worker_id, x.slot.stage, x.slot.pool) for x in lent)
    slots = {(w.worker_id, w.stage, w.pool): w for w in free}
    assert all(count <= slots[key].slots for key, count in by_worker.items())
    assert all(x.slot.queue_partition in slots[x.slot.worker_id, x.slot.stage, x.slot.pool].partitions for x in lent), (
        "a ticket goes to a partition that its worker reads"
    )
    by_partition = Counter((x.partition, x.slot.stage, x.slot.pool) for x in lent)
    asked = {(w.partition, w.stage, w.pool): w.sessions for w in wanted}
    assert all(count <= asked[key] for key, count in by_partition.items())
    for pool in ("default", "gpu"):
        for stage in Stage:
            available = sum(w.slots for w in free if (w.stage, w.pool) == (stage, pool) and w.partitions)
            if stage is Stage.INIT:
                available = min(available, max(0, room.get(pool, 0)))
            needed = sum(w.sessions for w in wanted if (w.stage, w.pool) == (stage, pool))
            given_out = sum(1 for x in lent if (x.slot.stage, x.slot.pool) == (stage, pool))
            assert given_out == min(available, needed), "no slot idles while someone wants it"


def beat(free: int, claims: list[str] | None = None, *, leaving: bool = False) -> Heartbeat:
    slots = StageSlots(Stage.RUN, "default", 4, free, [0, 1], claims or [])
    return Heartbeat("w", "worker", "h", 1, [slots], leaving=leaving)


def free_slots(ledger: Ledger, now: int) -> int:
    return sum(worker.slots for worker in ledger.free(now))


def test_a_steered_ticket_counts_against_its_worker_until_its_heartbeat_knows_the_claim() -> None:
    ledger = Ledger()
    ledger.beat(beat(4))
    ledger.released(ReleaseTicket("t.0", Stage.RUN, "w", 0), 0)
    assert free_slots(ledger, 0) == 3
    ledger.claimed("t.0", Stage.RUN, "w", "c", 100)
    assert free_slots(ledger, 100) == 3
    ledger.beat(beat(3, ["c"]))
    assert free_slots(ledger, 100) == 3
    ledger.beat(beat(4))
    assert free_slots(ledger, 100) == 4


def test_a_ticket_that_nobody_takes_gives_its_slot_back() -> None:
    ledger = Ledger()
    ledger.beat(beat(1))
    ledger.released(ReleaseTicket("t.0", Stage.RUN, "w", 0), 0)
    assert free_slots(ledger, TICKET_MS - 1) == 0
    assert free_slots(ledger, TICKET_MS) == 1
    ledger.claimed("t.1", Stage.RUN, "w", "c", TICKET_MS)
    assert free_slots(ledger, TICKET_MS + CLAIM_UNSEEN_MS) == 1


def test_a_claim_that_no_heartbeat_ever_showed_gives_its_slot_back_with_its_fact() -> None:
    ledger = Ledger()
    ledger.beat(beat(1))
    ledger.released(ReleaseTicket("t.0", Stage.RUN, "w", 0), 0)
    ledger.claimed("t.0", Stage.RUN, "w", "claim", 10)
    ledger.over("t.0", "another")
    assert not ledger.free(11), "another claim's end frees nothing"
    ledger.over("t.0", "claim")
    assert [worker.slots for worker in ledger.free(11)] == [1]


def test_a_promised_slot_is_not_lent_again_before_its_partition_has_decided() -> None:
    ledger = Ledger()
    ledger.beat(beat(1))
    slot = SlotLent(Stage.RUN, "default", "w", 0)
    ledger.promise(Lent(0, slot))
    assert free_slots(ledger, 0) == 0
    ledger.kept(slot)
    assert free_slots(ledger, 0) == 1


def test_lost_and_leaving_workers_lend_nothing() -> None:
    ledger = Ledger()
    ledger.beat(beat(2, leaving=True))
    assert (free_slots(ledger, 0), ledger.run_slots("default")) == (0, 0)
    ledger.beat(beat(2))
    assert (free_slots(ledger, 0), ledger.run_slots("default")) == (2, 4)
    ledger.lost("w")
    assert (free_slots(ledger, 0), ledger.run_slots("default")) == (0, 0)


def test_workers_take_turns() -> None:
    free = [Free(worker, Stage.RUN, "default", (0, 1), 4) for worker in ("w1", "w2")]
    lent = lend(free, [Want(0, Stage.RUN, "default", 4)], {})
    assert Counter(x.slot.worker_id for x in lent) == {"w1": 2, "w2": 2}


def test_a_long_backlog_of_one_partition_keeps_no_other_waiting() -> None:
    """One slot comes free at a time, in two stages by turns."""
    ledger = Ledger()
    slots = [StageSlots(stage, "default", 1, 1, [0]) for stage in (Stage.INIT, Stage.RUN)]
    ledger.beat(Heartbeat("w", "worker", "h", 1, slots))
    wants = [Want(partition, stage, "default", 100) for partition in (0, 1, 2) for stage in (Stage.INIT, Stage.RUN)]
    served: Counter[tuple[Stage, int]] = Counter()
    for _ in range(9):
        for lent in lend(ledger.free(0), ledger.in_turn(wants), {"default": 1}):
            ledger.promise(lent)
            ledger.kept(lent.slot)
            served[lent.slot.stage, lent.partition] += 1
    assert served == {(stage, partition): 3 for stage in (Stage.INIT, Stage.RUN) for partition in (0, 1, 2)}
