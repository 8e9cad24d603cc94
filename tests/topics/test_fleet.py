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
    rollbacks_at,
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
    everywhere, small = Publication(7, 0, 0), Publication(9, 1, 1000)
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


def publish(made: FleetView, version: int | None, offset: int, engine: str | None = None) -> PolicyVersion:
    """As a trainer does: the record, in the view's place for it."""
    replaced = list(made.policies.values()) if engine is None else [made.policy(engine)]
    record = PolicyVersion(version, engine, rollbacks_at(version, [each for each in replaced if each is not None]))
    assert made.take(record, offset=offset)
    return record


@given(st.lists(st.none() | st.integers(0, 8), max_size=30))
def test_the_newest_record_alone_tells_which_weights_later_ones_were_not_trained_from(
    versions: list[int | None],
) -> None:
    """Weights are of the current line if no later publication has a lower version: the newest record is all that compaction leaves."""
    made = FleetView()
    for offset, version in enumerate(versions):
        record = publish(made, version, offset)
        compacted = FleetView()
        compacted.take(record, offset=offset)
        current = compacted.policies[None]
        assert current == made.policies[None]._replace(written_ms=0)
        for at, weights in enumerate(versions[:offset]):
            if weights is None:
                continue
            later = versions[at + 1 : offset + 1]
            is_abandoned = any(each is not None and each < weights for each in later)
            assert current.has_abandoned(weights, at) == is_abandoned, (versions[: offset + 1], at)


def test_a_number_that_was_used_before_a_rollback_names_two_weights() -> None:
    made = FleetView()
    for offset, version in enumerate([5, 6, 5]):
        publish(made, version, offset)
    current = made.policies[None]
    assert current.rollbacks == (Rollback(5, 2),)
    assert [current.has_reused(version) for version in (4, 5, 6, 7)] == [False, False, True, True]


def test_an_engines_rollback_is_its_own_until_a_version_is_published_for_all() -> None:
    made = FleetView()
    publish(made, 5, 0)
    publish(made, 7, 1, "small")
    publish(made, 6, 2, "small")
    assert made.policies["small"].rollbacks == (Rollback(6, 2),)
    assert made.policies[None].rollbacks == ()
    publish(made, 8, 3)
    assert made.policies[None].rollbacks == (Rollback(6, 2),)


def test_of_many_rollbacks_the_newest_are_kept() -> None:
    made = FleetView()
    for number in range(300):
        publish(made, 2 * number + 1, 2 * number)
        publish(made, 2 * number, 2 * number + 1)
    kept = made.policies[None].rollbacks
    assert (len(kept), kept[-1]) == (100, Rollback(598, 599))
