"""A partition requests slots for the sessions that no assigned slot will serve, and returns the slots that it can't use."""

from __future__ import annotations

from consumers.coordinator.commands import SlotAssigned
from consumers.coordinator.scheduling.assignment import Assignment, SlotRequest
from consumers.coordinator.scheduling.demand import PartitionDemand
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.queue import QueueKey, SessionQueue
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

KEY = Stage.INIT, "default"
SLOT = SlotAssigned(*KEY, "w", 0, 5, "ann")


def demand_of_ann(free_slots: FreeSlots) -> PartitionDemand:
    """Three sessions of ann wait."""
    queue = SessionQueue()
    for index in range(3):
        queue.add(QueueKey(*KEY, 5, "ann"), "t", index)
    return PartitionDemand(7, queue, free_slots, lambda: None)


def test_slots_are_requested_once_the_table_is_recovered_less_those_assigned() -> None:
    demand = demand_of_ann(FreeSlots())
    assert not demand.waiting(*KEY)
    assert list(demand.requests(*KEY, 5, ["ann"])) == []
    demand.is_open = True
    assert demand.waiting(*KEY) == {5: 3}
    assert list(demand.requests(*KEY, 5, ["bob", "ann"])) == [SlotRequest(7, *KEY, 5, "ann", 3)]
    demand.assign(SLOT)
    assert list(demand.requests(*KEY, 5, ["ann"])) == [SlotRequest(7, *KEY, 5, "ann", 2)]
    assert (demand.active(*KEY), demand.staged("default")) == ({"ann": 1}, {5: 1})


def test_a_slot_is_reserved_until_the_partition_has_decided_on_it_or_returned_it() -> None:
    free_slots = FreeSlots()
    free_slots.on_heartbeat(Heartbeat("w", "worker", "h", 1, [StageSlots(Stage.INIT, "default", 2, 2, [0])]))
    demand = demand_of_ann(free_slots)
    for _ in range(2):
        free_slots.reserve(Assignment(7, SLOT))
        demand.assign(SLOT)
    assert not free_slots.free(0)
    demand.slot_decided()
    assert [worker.slots for worker in free_slots.free(0)] == [1]
    demand.return_slots()
    assert [worker.slots for worker in free_slots.free(0)] == [2]
    assert demand.next_slot is None
