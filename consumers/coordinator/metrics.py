"""A coordinator's statistics and their metrics, from which Prometheus and an autoscaler read; `consumers.metrics` renders them.

Sum per-partition values across coordinators. Slots are those of the whole fleet, and every coordinator reports all: take the maximum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consumers.coordinator.scheduling.shares import ROLE
from consumers.metrics import Metrics
from topics.types.session import Phase, Stage

SNAPSHOT_S = 0.2
"""For how long one snapshot serves: a scrape reads its values one by one."""


@dataclass(frozen=True)
class Statistics:
    """Gauges of one instant, for the partitions owned now, and counters since the process started."""

    partitions: int
    """Partitions of `polar.events` that are owned and recovered."""
    backlog: Mapping[tuple[str, Stage, int], int]
    """Waiting sessions by pool, stage and priority."""
    active: Mapping[tuple[str, Stage, int], int]
    """Sessions with a ticket or a claim, by pool, stage and priority."""
    staged: Mapping[str, int]
    """Sessions between an INIT ticket and a run claim, by pool."""
    slots: Mapping[tuple[str, Stage], int]
    """Slots of all live workers, by pool and stage."""
    free: Mapping[tuple[str, Stage], int]
    """Slots of all live workers that are free and have no ticket of this process on its way."""
    sessions: Mapping[Phase, int]
    """Sessions in the table, by phase."""
    facts: int
    """Counter: records of `polar.events` read."""
    skipped: Mapping[str, int]
    """Counter by reason: inputs that the table didn't allow, and unknown records."""
    workers_lost: int
    """Counter: leases that ended."""


def register(metrics: Metrics, read: Callable[[], Statistics]) -> None:
    """Register a coordinator's metrics."""
    now = _Snapshot(read)
    by_priority, by_stage = ("pool", "stage", "priority"), ("pool", "stage")
    metrics.gauge("polar_backlog", "Sessions that wait for a slot", by_priority, lambda: _demand(now(), now().backlog))
    metrics.gauge("polar_held", "Sessions with a ticket or a claim", by_priority, lambda: _demand(now(), now().active))
    metrics.gauge("polar_staged", "Sessions between INIT ticket and run claim", ("pool",), lambda: now().staged)
    metrics.gauge("polar_slots", "Slots of all live workers", by_stage, lambda: _by_stage(now().slots))
    metrics.gauge(
        "polar_slots_free",
        "Free slots of all live workers",
        by_stage,
        lambda: _by_stage({key: now().free.get(key, 0) for key in now().slots}),
    )
    metrics.gauge(
        "polar_sessions",
        "Sessions in the table",
        ("phase",),
        lambda: {phase.value: now().sessions.get(phase, 0) for phase in Phase},
    )
    metrics.gauge("polar_partitions_owned", "Partitions owned", ("role",), lambda: {ROLE: now().partitions})
    metrics.counter("polar_facts", "Facts read", (), lambda: now().facts)
    metrics.counter("polar_workers_lost", "Workers whose lease ended", (), lambda: now().workers_lost)
    metrics.skipped(ROLE, lambda: now().skipped)


class _Snapshot:
    def __init__(self, read: Callable[[], Statistics]) -> None:
        self._read = read
        self._statistics = read()
        self._at = time.monotonic()

    def __call__(self) -> Statistics:
        if time.monotonic() - self._at > SNAPSHOT_S:
            self._statistics, self._at = self._read(), time.monotonic()
        return self._statistics


def _demand(statistics: Statistics, counts: Mapping[tuple[str, Stage, int], int]) -> dict[tuple[str, str, str], float]:
    """With a zero for each stage of an idle pool: an autoscaler's sum of two metrics has no value if one of them is missing."""
    found = {(pool, stage.value, str(priority)): float(count) for (pool, stage, priority), count in counts.items()}
    pools = {pool for pool, _ in statistics.slots} | {p for p, _, _ in (*statistics.backlog, *statistics.active)}
    return {(pool, stage.value, "0"): 0.0 for pool in pools for stage in Stage} | found


def _by_stage(counts: Mapping[tuple[str, Stage], int]) -> dict[tuple[str, str], float]:
    return {(pool, stage.value): count for (pool, stage), count in counts.items()}
