"""The queue of faults. What each does to an answer: `test_app.py`."""

import pytest

from polar.scripted.faults import QUEUED_FAULTS, Faults, Garbage, Hang, Status, kind_of


def test_each_fault_befalls_as_many_calls_as_it_is_told_to_in_order() -> None:
    """`test_app.py` shows over HTTP how faults are listed and cleared."""
    faults = Faults()
    faults.add(Status(status=503, times=2))
    faults.add(Garbage(form="not_json"))
    taken = [faults.take()]
    assert faults.pending() == [Status(status=503), Garbage(form="not_json")]
    taken += [faults.take() for _ in range(3)]
    assert [fault and kind_of(fault) for fault in taken] == ["status", "status", "garbage:not_json", None]


def test_the_queue_is_bounded() -> None:
    faults = Faults()
    for _ in range(QUEUED_FAULTS):
        faults.add(Hang())
    with pytest.raises(ValueError, match="DELETE /scripted/faults"):
        faults.add(Hang())
