"""A slot is counted as free once, as early as that can be known."""

from __future__ import annotations

import pytest

from consumers.coordinator.commands import ReleaseTicket, SlotAssigned
from consumers.coordinator.deadlines import TICKET_MS
from consumers.coordinator.scheduling.assignment import Assignment
from consumers.coordinator.scheduling.free_slots import CLAIM_UNSEEN_MS, SERVED_LIMIT, FreeSlots
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

KEY = Stage.RUN, "default"


class OneWorker(FreeSlots):
    """Free run slots of the worker `w`, which has four."""

    def heartbeat(self, free: int, *claims: str, leaving: bool = False) -> None:
        slots = StageSlots(*KEY, 4, free, [0, 1], list(claims))
        self.on_heartbeat(Heartbeat("w", "worker", "h", 1, [slots], leaving=leaving))

    def ticket(self, session_id: str) -> None:
        self.on_ticket(ReleaseTicket(session_id, Stage.RUN, "w", 0), 0)

    def claimed(self, session_id: str, claim_id: str, now: int) -> None:
        self.on_claimed(session_id, Stage.RUN, "w", claim_id, now)

    def count(self, now: int = 0) -> int:
        return sum(worker.slots for worker in self.free(now))


@pytest.fixture
def slots() -> OneWorker:
    return OneWorker()


def test_a_ticket_counts_against_its_worker_until_its_heartbeat_lists_the_claim(slots: OneWorker) -> None:
    slots.heartbeat(4)
    slots.ticket("t.0")
    assert slots.count() == 3
    slots.claimed("t.0", "c", 100)
    assert slots.count(100) == 3
    slots.heartbeat(3, "c")
    assert slots.count(100) == 3
    slots.heartbeat(4)
    assert slots.count(100) == 4


def test_an_unclaimed_ticket_and_a_claim_that_no_heartbeat_lists_expire(slots: OneWorker) -> None:
    slots.heartbeat(1)
    slots.ticket("t.0")
    assert [slots.count(now) for now in (TICKET_MS - 1, TICKET_MS)] == [0, 1]
    slots.claimed("t.1", "c", TICKET_MS)
    assert [slots.count(TICKET_MS + after) for after in (0, CLAIM_UNSEEN_MS)] == [0, 1]


def test_each_round_begins_at_another_of_the_queue_partitions(slots: OneWorker) -> None:
    """So that a ticket that nobody claims isn't released again and again to a partition whose worker hangs."""
    slots.heartbeat(4)
    first = [slots.free(0)[0].partitions]
    for _ in range(2):
        slots.next_round()
        first.append(slots.free(0)[0].partitions)
    assert first == [(0, 1), (1, 0), (0, 1)]


def test_the_end_of_a_claim_that_no_heartbeat_listed_frees_its_slot(slots: OneWorker) -> None:
    slots.heartbeat(1)
    slots.ticket("t.0")
    slots.claimed("t.0", "claim", 10)
    slots.on_claim_ended("t.0", "another", 11)
    assert not slots.free(11), "another claim's end frees nothing"
    slots.on_claim_ended("t.0", "claim", 11)
    assert slots.count(11) == 1


def test_the_end_of_a_claim_frees_its_slot_once_before_the_heartbeat_does(slots: OneWorker) -> None:
    slots.heartbeat(2, "c", "d")
    slots.on_claim_ended("t.0", "c", 0)
    slots.on_claim_ended("t.0", "c", 0)
    assert slots.count() == 3
    slots.heartbeat(2, "c", "d")
    assert slots.count() == 3, "that heartbeat was written before the worker freed the slot"
    slots.heartbeat(3, "d")
    assert slots.count() == 3
    slots.ticket("t.1")
    assert slots.count() == 2


def test_heartbeats_that_go_on_listing_an_ended_claim_are_believed(slots: OneWorker) -> None:
    slots.heartbeat(0, "a", "b", "c", "d")
    slots.on_claim_ended("t.0", "a", 0)
    assert [slots.count(now) for now in (0, CLAIM_UNSEEN_MS - 1, CLAIM_UNSEEN_MS)] == [1, 1, 0]


def test_lost_and_leaving_workers_have_no_free_slots(slots: OneWorker) -> None:
    slots.heartbeat(2, "c", leaving=True)
    assert (slots.count(), slots.slots()[KEY]) == (0, 0)
    slots.heartbeat(2, "c")
    assert (slots.count(), slots.slots()[KEY]) == (2, 4)
    slots.on_claim_ended("t.0", "c", 0)
    slots.on_worker_lost("w")
    assert (slots.count(), slots.slots()[KEY]) == (0, 0)
    slots.heartbeat(2, "d")
    assert slots.count() == 2, "a claim that ended before the loss frees no slot now"


def test_memory_of_users_served_is_limited(slots: OneWorker) -> None:
    for n in range(SERVED_LIMIT):
        slot = SlotAssigned(*KEY, "w", 0, 0, str(n))
        slots.reserve(Assignment(3, slot))
        slots.unreserve(slot)
    last = str(SERVED_LIMIT - 1)
    assert slots.last_served(KEY, last) == slots.last_served(KEY, last, 3) == SERVED_LIMIT
    assert slots.last_served(KEY, last, 4) == 0
    assert slots.last_served(KEY, "0") == 0, "a user served that long ago counts as never served"
