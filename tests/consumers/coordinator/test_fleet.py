"""What the coordinator knows of the fleet."""

from __future__ import annotations

from itertools import permutations

from consumers.coordinator.fleet import FleetView
from topics.fleet import FleetRecord, FleetState, PolicyVersion


def test_before_any_record_the_fleet_runs() -> None:
    view = FleetView()
    assert (view.generation, view.paused, view.draining) == (0, False, False)


def test_the_newest_generation_counts_in_whatever_order_records_come() -> None:
    records: list[FleetRecord] = [
        FleetState(1, paused=True),
        FleetState(2, draining=True),
        PolicyVersion(7),
        FleetState(3),
    ]
    for order in permutations(records):
        view = FleetView()
        for record in order:
            view.apply(record)
        assert (view.generation, view.paused, view.draining) == (3, False, False)


def test_of_two_records_of_one_generation_the_first_counts() -> None:
    view = FleetView()
    view.apply(FleetState(1, draining=True, by="a"))
    view.apply(FleetState(1, by="b"))
    assert view.draining


def test_a_pause_and_a_drain_are_seen() -> None:
    view = FleetView()
    seen: list[tuple[bool, bool]] = []
    for state in (FleetState(1, paused=True), FleetState(2, draining=True)):
        view.apply(state)
        seen.append((view.paused, view.draining))
    assert seen == [(True, False), (False, True)]
