"""One partition, as the lending sees it: what it wants, what it has, and the slots that it was given and hasn't decided on.

Invariant: a slot that was given is promised in the ledger until it is decided on or given back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from consumers.coordinator.commands import SlotLent
from consumers.coordinator.scheduling.assignment import Want
from consumers.coordinator.scheduling.free_slots import Ledger
from consumers.coordinator.scheduling.queue import Waiting
from topics.types.session import Stage


class Borrower:
    """Of one partition's table; it borrows nothing before it `is_open`: while the table is being read nobody knows who waits."""

    def __init__(self, partition: int, waiting: Waiting, ledger: Ledger, on_slot: Callable[[], None]) -> None:
        self.waiting = waiting
        self.is_open = False
        self._partition = partition
        self._ledger = ledger
        self._on_slot = on_slot
        self._slots: list[SlotLent] = []

    def sessions(self, stage: Stage, pool: str) -> Counter[int]:
        """How many sessions wait, by priority; slots given aren't taken off."""
        return self.waiting.sessions(stage, pool) if self.is_open else Counter()

    def wants(self, stage: Stage, pool: str, priority: int, users: Iterable[str]) -> Iterator[Want]:
        """Sessions of these users that want a slot, less the slots given."""
        given = Counter(
            slot.user for slot in self._slots if (slot.stage, slot.pool, slot.priority) == (stage, pool, priority)
        )
        waiting = self.waiting.users(stage, pool, priority) if self.is_open else {}
        for user in users:
            tasks = waiting.get(user)
            if tasks is not None and tasks.sessions > given[user]:
                yield Want(self._partition, stage, pool, priority, user, tasks.sessions - given[user])

    def in_hand(self, stage: Stage, pool: str) -> Counter[str]:
        """By user: sessions with a ticket or a claim, and slots given."""
        given = Counter(slot.user for slot in self._slots if (slot.stage, slot.pool) == (stage, pool))
        return self.waiting.in_hand(stage, pool) + given

    def staged(self, pool: str) -> Counter[int]:
        """By priority: sessions between an INIT ticket and a run claim, and INIT slots given."""
        given = Counter(slot.priority for slot in self._slots if (slot.stage, slot.pool) == (Stage.INIT, pool))
        return self.waiting.staged(pool) + given

    def give(self, slot: SlotLent) -> None:
        self._slots.append(slot)
        self._on_slot()

    @property
    def slot(self) -> SlotLent | None:
        """The next one to decide on."""
        return self._slots[0] if self._slots else None

    def decided(self) -> None:
        """On that one: what came of it the ledger was told, or nothing did."""
        self._ledger.kept(self._slots.pop(0))

    def give_back(self) -> None:
        """All that wasn't decided on."""
        while self._slots:
            self.decided()
