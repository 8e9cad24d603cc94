"""A partition asks for what it wants beyond what it was given, and gives back what it can't use."""

from __future__ import annotations

from consumers.coordinator.commands import SlotLent
from consumers.coordinator.scheduling.assignment import Lent, Want
from consumers.coordinator.scheduling.demand import Borrower
from consumers.coordinator.scheduling.free_slots import Ledger
from consumers.coordinator.scheduling.queue import Place, Waiting
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots

LINE = Stage.INIT, "default"
SLOT = SlotLent(*LINE, "w", 0, 5, "ann")


def borrowing(ledger: Ledger) -> Borrower:
    """Three sessions of ann wait."""
    waiting = Waiting()
    for index in range(3):
        waiting.add(Place(*LINE, 5, "ann"), "t", index)
    return Borrower(7, waiting, ledger, lambda: None)


def test_nothing_is_borrowed_while_the_table_is_being_read() -> None:
    borrower = borrowing(Ledger())
    assert not borrower.sessions(*LINE)
    assert list(borrower.wants(*LINE, 5, ["ann"])) == []
    borrower.is_open = True
    assert borrower.sessions(*LINE) == {5: 3}
    assert list(borrower.wants(*LINE, 5, ["bob", "ann"])) == [Want(7, *LINE, 5, "ann", 3)]


def test_a_slot_given_is_wanted_no_more_and_counts_as_in_hand_and_staged() -> None:
    borrower = borrowing(Ledger())
    borrower.is_open = True
    borrower.give(SLOT)
    assert list(borrower.wants(*LINE, 5, ["ann"])) == [Want(7, *LINE, 5, "ann", 2)]
    assert (borrower.in_hand(*LINE), borrower.staged("default")) == ({"ann": 1}, {5: 1})


def test_what_was_not_decided_on_goes_back_to_the_ledger() -> None:
    ledger = Ledger()
    ledger.beat(Heartbeat("w", "worker", "h", 1, [StageSlots(Stage.INIT, "default", 2, 2, [0])]))
    borrower = borrowing(ledger)
    for _ in range(2):
        ledger.promise(Lent(7, SLOT))
        borrower.give(SLOT)
    assert not ledger.free(0)
    borrower.decided()
    assert [worker.slots for worker in ledger.free(0)] == [1]
    borrower.give_back()
    assert [worker.slots for worker in ledger.free(0)] == [2]
    assert borrower.slot is None
