"""A slot is counted free once, as early as that can be known."""

from __future__ import annotations

from consumers.coordinator.commands import ReleaseTicket, SlotLent
from consumers.coordinator.deadlines import TICKET_MS
from consumers.coordinator.scheduling.assignment import Lent
from consumers.coordinator.scheduling.free_slots import CLAIM_UNSEEN_MS, TURNS, Ledger
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots


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
    ledger.over("t.0", "another", 11)
    assert not ledger.free(11), "another claim's end frees nothing"
    ledger.over("t.0", "claim", 11)
    assert free_slots(ledger, 11) == 1


def test_a_fact_frees_the_slot_before_the_heartbeat_says_so_and_only_once() -> None:
    ledger = Ledger()
    ledger.beat(beat(2, ["c", "d"]))
    ledger.over("t.0", "c", 0)
    ledger.over("t.0", "c", 0)
    assert free_slots(ledger, 0) == 3
    ledger.beat(beat(2, ["c", "d"]))
    assert free_slots(ledger, 0) == 3, "that heartbeat was written before the worker let go"
    ledger.beat(beat(3, ["d"]))
    assert free_slots(ledger, 0) == 3
    ledger.released(ReleaseTicket("t.1", Stage.RUN, "w", 0), 0)
    assert free_slots(ledger, 0) == 2


def test_a_worker_that_says_for_long_that_a_claim_goes_on_is_believed() -> None:
    ledger = Ledger()
    ledger.beat(beat(0, ["a", "b", "c", "d"]))
    ledger.over("t.0", "a", 0)
    assert [free_slots(ledger, now) for now in (0, CLAIM_UNSEEN_MS - 1, CLAIM_UNSEEN_MS)] == [1, 1, 0]


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
    line = Stage.RUN, "default"
    ledger.beat(beat(2, ["c"], leaving=True))
    assert (free_slots(ledger, 0), ledger.slots()[line]) == (0, 0)
    ledger.beat(beat(2, ["c"]))
    assert (free_slots(ledger, 0), ledger.slots()[line]) == (2, 4)
    ledger.over("t.0", "c", 0)
    ledger.lost("w")
    assert (free_slots(ledger, 0), ledger.slots()[line]) == (0, 0)
    ledger.beat(beat(2, ["d"]))
    assert free_slots(ledger, 0) == 2, "what ended before it was lost is no slot of it now"


def test_users_that_come_and_go_leave_nothing_behind_for_ever() -> None:
    ledger = Ledger()
    for n in range(TURNS):
        slot = SlotLent(Stage.RUN, "default", "w", 0, 0, str(n))
        ledger.promise(Lent(3, slot))
        ledger.kept(slot)
    line, last = (Stage.RUN, "default"), str(TURNS - 1)
    assert ledger.served_at(line, last) == ledger.served_at(line, last, 3) == TURNS
    assert ledger.served_at(line, last, 4) == 0
    assert ledger.served_at(line, "0") == 0, "one who was served so long ago is like one who never was"
