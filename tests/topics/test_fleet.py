"""The fleet's state and policies as records of `polar.fleet` say, for every reader of the topic."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from topics.fleet import (
    EngineProcess,
    FleetRecord,
    FleetState,
    FleetView,
    PolicyVersion,
    Publication,
    Rollback,
    key_of,
)


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
    everywhere, small = Publication(7, 0, 0), Publication(9, 1, 1000, engine="small")
    assert view(PolicyVersion(7), PolicyVersion(9, "small")).policies == {None: everywhere, "small": small}
    found = view(PolicyVersion(7), PolicyVersion(9, "small"))
    assert (found.policy("small"), found.policy("other"), view().policy("small")) == (small, everywhere, None)
    assert view(PolicyVersion(9, "small"), PolicyVersion(None)).policies == {None: Publication(None, 1, 1000)}


def test_a_process_is_a_record_of_its_server_and_no_state_of_the_fleet() -> None:
    process = EngineProcess("default", "http://e:8000", 1)
    assert key_of(process) == "process:default:http://e:8000"
    found = view()
    assert found.take(process)
    assert (found.generation, found.policies) == (0, {})


def publish(made: FleetView, version: int | None, offset: int, engine: str | None = None) -> Publication:
    """As a trainer does. The publication, of what compaction leaves of the records: the newest one alone."""
    record = made.publishing(version, engine)
    assert made.take(record, offset=offset)
    compacted = FleetView()
    compacted.take(record, offset=offset)
    assert compacted.policies == {engine: made.policies[engine]}
    return made.policies[engine]


@given(st.lists(st.none() | st.integers(0, 8), max_size=30))
def test_the_newest_record_tells_which_weights_are_lost_and_which_numbers_name_two(versions: list[int | None]) -> None:
    """Weights are lost if a later publication has a lower version; a number may name lost ones if it lies between such two."""
    made = FleetView()
    for offset, version in enumerate(versions):
        current = publish(made, version, offset)
        reused: set[int] = set()
        for at, weights in enumerate(versions[:offset]):
            if weights is None:
                continue
            later = [each for each in versions[at + 1 : offset + 1] if each is not None]
            reused.update(number for each in later for number in range(each + 1, weights + 1))
            is_abandoned = any(each < weights for each in later)
            assert current.has_abandoned(weights, at, "any") == is_abandoned, (versions[: offset + 1], at)
        assert {number for number in range(12) if current.has_reused(number, "any")} == reused, versions[: offset + 1]


def test_numbers_above_what_a_rollback_undid_are_new() -> None:
    made = FleetView()
    current = [publish(made, version, offset) for offset, version in enumerate([5, 6, 5, 6, 20])][-1]
    assert current.rollbacks == (Rollback(5, 6, 2),)
    assert [current.has_reused(version, "any") for version in (4, 5, 6, 7, 20)] == [False, False, True, False, False]


def test_an_interrupted_update_is_no_rollback_unless_a_lower_version_follows() -> None:
    made = FleetView()
    for offset, version in enumerate([7, None, None, 7, None, 8]):
        assert publish(made, version, offset).rollbacks == ()
    publish(made, None, 6)
    assert publish(made, 7, 7).rollbacks == (Rollback(7, 8, 7),)


def test_an_engines_rollback_undoes_no_weights_of_other_engines() -> None:
    made = FleetView()
    publish(made, 5, 0)
    publish(made, 7, 1, "small")
    publish(made, 7, 2, "large")
    publish(made, 6, 3, "small")
    undone = Rollback(6, 7, 3, "small")
    assert made.policies["small"].rollbacks == (undone,)
    assert made.policies["large"].rollbacks == made.policies[None].rollbacks == ()
    everywhere = publish(made, 8, 4)
    assert everywhere.rollbacks == (undone,)
    assert everywhere.has_abandoned(7, 1, "small")
    assert not everywhere.has_abandoned(7, 2, "large")
    assert [everywhere.has_reused(7, engine) for engine in ("small", "large")] == [True, False]
    assert publish(made, 6, 5, "large").rollbacks == (undone, Rollback(6, 8, 5, "large"))
    everywhere = publish(made, 5, 6)
    assert everywhere.rollbacks == (Rollback(5, 8, 6),), "it undoes what the others did, and more"


def test_of_many_rollbacks_the_newest_are_kept() -> None:
    made = FleetView()
    publish(made, 900, 0)
    for number in range(300):
        publish(made, 2 * number + 1, 2 * number + 1)
        kept = publish(made, 2 * number, 2 * number + 2)
    assert (len(kept.rollbacks), kept.rollbacks[-1]) == (100, Rollback(598, 900, 600))
    assert kept.has_reused(900, "any")
