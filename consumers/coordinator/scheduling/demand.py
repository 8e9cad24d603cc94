"""One partition's demand: the slots that it requests and uses, and the assigned slots that it hasn't decided on.

Invariant: an assigned slot stays reserved in `FreeSlots` until the partition has decided on it or has returned it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from consumers.coordinator.commands import SlotAssigned
from consumers.coordinator.scheduling.assignment import SlotRequest
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.queue import SessionQueue
from topics.types.session import Stage


class PartitionDemand:
    """It requests nothing before it `is_open`: who waits is unknown until the partition's table is recovered."""

    def __init__(self, partition: int, queue: SessionQueue, free_slots: FreeSlots, on_slot: Callable[[], None]) -> None:
        self.queue = queue
        self.is_open = False
        self._partition = partition
        self._free_slots = free_slots
        self._on_slot = on_slot
        self._slots: list[SlotAssigned] = []

    def waiting(self, stage: Stage, pool: str) -> Counter[int]:
        """Waiting sessions by priority, those included that an assigned slot will serve."""
        return self.queue.waiting(stage, pool) if self.is_open else Counter()

    def requests(self, stage: Stage, pool: str, priority: int, users: Iterable[str]) -> Iterator[SlotRequest]:
        """Requests of these users, less the slots already assigned."""
        assigned = Counter(
            slot.user for slot in self._slots if (slot.stage, slot.pool, slot.priority) == (stage, pool, priority)
        )
        waiting = self.queue.users(stage, pool, priority) if self.is_open else {}
        for user in users:
            tasks = waiting.get(user)
            if tasks is not None and tasks.sessions > assigned[user]:
                yield SlotRequest(self._partition, stage, pool, priority, user, tasks.sessions - assigned[user])

    def active(self, stage: Stage, pool: str) -> Counter[str]:
        """Active sessions and assigned slots by user."""
        assigned = Counter(slot.user for slot in self._slots if (slot.stage, slot.pool) == (stage, pool))
        return self.queue.active_by_user(stage, pool) + assigned

    def staged(self, pool: str) -> Counter[int]:
        """Staged sessions and assigned INIT slots by priority."""
        assigned = Counter(slot.priority for slot in self._slots if (slot.stage, slot.pool) == (Stage.INIT, pool))
        return self.queue.staged(pool) + assigned

    def assign(self, slot: SlotAssigned) -> None:
        self._slots.append(slot)
        self._on_slot()

    @property
    def next_slot(self) -> SlotAssigned | None:
        """The assigned slot to decide on next."""
        return self._slots[0] if self._slots else None

    def slot_decided(self) -> None:
        """End the reservation of `next_slot`; a ticket that came of it has been reported to `FreeSlots` already."""
        self._free_slots.unreserve(self._slots.pop(0))

    def return_slots(self) -> None:
        """Return all slots that weren't decided on."""
        while self._slots:
            self.slot_decided()
