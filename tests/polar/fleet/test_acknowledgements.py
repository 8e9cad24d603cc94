"""Who is counted while a pause waits, in the broker's time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polar.fleet.acknowledgements import Acknowledgements
from topics.log.liveness import GAP_MS, LEASE_MS
from topics.workers import Heartbeat, Probe


def beat(worker_id: str, generation: int = 0, *, role: str = "proxy", address: str | None = None) -> Heartbeat:
    return Heartbeat(worker_id, role, "host", 1, address=address, fleet_generation=generation)


def probed(processes: Acknowledgements, since_ms: int, until_ms: int) -> None:
    """A record a second, as who waits writes it."""
    for at in range(since_ms, until_ms, 1000):
        processes.add(Probe("us"), at)


def test_a_process_counts_from_its_first_heartbeat_on_until_its_lease_has_ended() -> None:
    processes = Acknowledgements()
    processes.add(beat("a", 1), 0)
    probed(processes, 1000, LEASE_MS + 1)
    assert [one.worker_id for one in processes.behind("proxy", 2)] == ["a"]
    assert not processes.behind("proxy", 1)
    processes.add(Probe("us"), LEASE_MS + 1000)
    assert not processes.live


def test_a_wider_gap_is_an_outage_and_ends_nobodys_lease() -> None:
    processes = Acknowledgements()
    processes.add(beat("a"), 0)
    processes.add(Probe("us"), 60_000)
    probed(processes, 61_000, 60_000 + LEASE_MS + 1)
    assert set(processes.live) == {"a"}
    processes.add(Probe("us"), 60_000 + LEASE_MS + 1000)
    assert not processes.live


def test_who_takes_anothers_address_has_it_alone() -> None:
    processes = Acknowledgements()
    processes.add(beat("a", address="http://h:1"), 0)
    processes.add(beat("w", role="worker"), 0)
    processes.add(beat("b"), 10)
    assert set(processes.live) == {"a", "b", "w"}, "it takes no calls yet, and may have read of no pause"
    processes.add(beat("c", address="http://h:1"), 20)
    assert set(processes.live) == {"b", "c", "w"}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, GAP_MS)), max_size=60))
def test_who_was_heard_within_a_lease_always_counts(heard: list[tuple[str, int]]) -> None:
    processes = Acknowledgements()
    at, last = 0, dict[str, int]()
    for worker_id, gap in heard:
        at += gap
        processes.add(beat(worker_id), at)
        last[worker_id] = at
        assert set(processes.live) == {name for name, when in last.items() if at - when <= LEASE_MS}
