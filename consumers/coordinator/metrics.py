"""A coordinator's figures as Prometheus and an autoscaler read them. What they count is in `figures`; rendering is `consumers.metrics`'.

What is of partitions adds up over coordinators. Slots are the whole fleet's, as each of them sees it: take the greatest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from consumers.coordinator.scheduling.shares import ROLE
from consumers.coordinator.statistics import Figures
from consumers.metrics import Metrics
from topics.types.session import Phase, Stage

INSTANT_S = 0.2
"""Figures of one instant: a scrape reads them one by one."""


def tell(metrics: Metrics, figures: Callable[[], Figures]) -> None:
    """Say where a coordinator's figures are."""
    now = _Instant(figures)
    by_want, by_stage = ("pool", "stage", "priority"), ("pool", "stage")
    metrics.gauge("polar_backlog", "Sessions that want a slot", by_want, lambda: _wants(now(), now().backlog))
    metrics.gauge("polar_held", "Sessions with a ticket or a claim", by_want, lambda: _wants(now(), now().held))
    metrics.gauge("polar_staged", "Sessions between INIT ticket and run claim", ("pool",), lambda: now().staged)
    metrics.gauge("polar_slots", "Slots of all live workers", by_stage, lambda: _by_stage(now().slots))
    metrics.gauge(
        "polar_slots_free",
        "Of these, free ones",
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


class _Instant:
    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self._taken = figures()
        self._at = time.monotonic()

    def __call__(self) -> Figures:
        if time.monotonic() - self._at > INSTANT_S:
            self._taken, self._at = self._figures(), time.monotonic()
        return self._taken


def _wants(figures: Figures, counts: Mapping[tuple[str, Stage, int], int]) -> dict[tuple[str, str, str], float]:
    """A nought for each stage of a pool that wants nothing: an autoscaler's sum of two figures is silence where one of them is."""
    told = {(pool, stage.value, str(priority)): float(count) for (pool, stage, priority), count in counts.items()}
    pools = {pool for pool, _ in figures.slots} | {pool for pool, _, _ in (*figures.backlog, *figures.held)}
    idle = {(pool, stage.value, "0"): 0.0 for pool in pools for stage in Stage}
    return idle | told


def _by_stage(counts: Mapping[tuple[str, Stage], int]) -> dict[tuple[str, str], float]:
    return {(pool, stage.value): count for (pool, stage), count in counts.items()}
