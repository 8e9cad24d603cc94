"""Leases in log time: an outage or a pause of our own costs none."""

from __future__ import annotations

import pytest

from consumers.coordinator.leases import Leases
from topics.log.liveness import GAP_MS, LEASE_MS
from topics.types.session import Stage
from topics.workers import Heartbeat, StageSlots


def beat(worker: str = "w", claims: list[str] | None = None) -> Heartbeat:
    return Heartbeat(worker, "worker", "h", 1, [StageSlots(Stage.RUN, "default", 4, 4, [0], claims or [])])


def probe(leases: Leases, start_ms: int, seconds: int) -> int:
    for second in range(seconds):
        leases.on_probe(start_ms + second * 1000, 0.0)
    return start_ms + seconds * 1000


def is_lost(leases: Leases) -> bool:
    """Whether claim `c` of worker `w` is."""
    return leases.lost_claims("w", {"c": "t.0"}.keys()) == ["c"]


def test_a_worker_is_gone_after_six_seconds_of_covered_log_time() -> None:
    leases = Leases()
    at = probe(leases, 0, 1)
    leases.on_heartbeat(beat())
    at = probe(leases, at, LEASE_MS // 1000)
    assert leases.pop_lost_workers() == []
    probe(leases, at, 1)
    assert leases.pop_lost_workers() == ["w"]
    assert leases.pop_lost_workers() == []


@pytest.mark.parametrize(("gap_ms", "lost"), [(3_000, ["w"]), (3_001, [])])
def test_a_gap_between_probes_of_more_than_three_seconds_is_an_outage(gap_ms: int, lost: list[str]) -> None:
    leases = Leases()
    at = probe(leases, 0, 1)
    leases.on_heartbeat(beat())
    at = probe(leases, at, 4)
    probe(leases, at - 1_000 + gap_ms, 1)
    assert leases.pop_lost_workers() == lost


def test_a_minute_without_kafka_starts_all_leases_anew() -> None:
    leases = Leases()
    at = probe(leases, 0, 1)
    leases.on_heartbeat(beat(claims=["c"]))
    assert not is_lost(leases)
    at = probe(leases, at + 60_000, 5)
    assert (leases.pop_lost_workers(), is_lost(leases)) == ([], False)
    assert leases.clock < GAP_MS + 6_000
    probe(leases, at, 4)
    assert leases.pop_lost_workers() == ["w"]


def test_a_claim_is_lost_when_its_live_worker_no_longer_holds_it() -> None:
    leases = Leases()
    at = probe(leases, 0, 1)
    leases.on_heartbeat(beat(claims=["c"]))
    assert not is_lost(leases)
    for _ in range(LEASE_MS // 1000):
        leases.on_heartbeat(beat())
        assert not is_lost(leases)
        at = probe(leases, at, 1)
    leases.on_heartbeat(beat())
    at = probe(leases, at, 1)
    assert is_lost(leases)


def test_a_claim_of_a_worker_never_seen_is_lost_only_after_a_whole_lease() -> None:
    leases = Leases()
    at = probe(leases, 0, 3)
    assert not is_lost(leases)
    at = probe(leases, at, 6)
    assert not is_lost(leases)
    probe(leases, at, 1)
    assert is_lost(leases)


def test_the_clock_between_probes_runs_on_for_three_seconds_and_never_back() -> None:
    leases = Leases()
    leases.on_probe(0, 10.0)
    assert leases.now(10.5) == 500
    assert leases.now(99.0) == GAP_MS
    leases.on_probe(1_000, 100.0)
    assert leases.now(100.0) == GAP_MS


def test_a_pool_is_dark_when_no_run_worker_has_lived_for_ten_minutes() -> None:
    leases = Leases()
    at = probe(leases, 0, 1)
    assert not leases.is_offline("default")
    at = probe(leases, at, 600)
    assert not leases.is_offline("default")
    at = probe(leases, at, 1)
    assert leases.is_offline("default")
    leases.on_heartbeat(beat())
    assert not leases.is_offline("default")


def test_a_claim_is_lost_as_soon_as_its_worker_is_and_not_a_lease_later() -> None:
    leases = Leases()
    at = probe(leases, 0, 1)
    leases.on_heartbeat(beat(claims=["c"]))
    assert not is_lost(leases)
    probe(leases, at, LEASE_MS // 1000 + 1)
    assert is_lost(leases)
    assert leases.pop_lost_workers() == ["w"]
    assert is_lost(leases)
