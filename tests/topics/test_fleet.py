"""The fleet's state and policies as records of `polar.fleet` say, for every reader of the topic."""

from __future__ import annotations

from itertools import permutations

from topics.fleet import FleetRecord, FleetState, FleetView, Policy, PolicyVersion


def view(*records: FleetRecord) -> FleetView:
    """`records` were written a second apart, at offsets from 0 on."""
    made = FleetView()
    for offset, record in enumerate(records):
        made.take(record, offset=offset, written_ms=1000 * offset)
    return made


def test_before_any_record_the_fleet_runs() -> None:
    assert (view().generation, view().paused, view().draining, view().since_ms) == (0, False, False, None)


def test_the_newest_generation_counts_in_whatever_order_records_come() -> None:
    for order in permutations([FleetState(1, paused=True), FleetState(2, draining=True), FleetState(3)]):
        found = view(*order)
        assert (found.generation, found.paused, found.draining) == (3, False, False)
        assert found.since_ms == 1000 * order.index(FleetState(3))


def test_of_two_records_of_one_generation_the_first_counts() -> None:
    found = view(FleetState(1, draining=True, by="a"))
    assert not found.take(FleetState(1, by="b"))
    assert found.draining


def test_a_version_for_all_engines_replaces_those_of_single_ones() -> None:
    assert view(PolicyVersion(7), PolicyVersion(9, "small")).policies == {None: Policy(7, 0), "small": Policy(9, 1)}
    assert view(PolicyVersion(9, "small"), PolicyVersion(None)).policies == {None: Policy(None, 1)}
