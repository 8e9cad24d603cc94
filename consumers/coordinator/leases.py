"""The live workers and claims, in log time (protocol 12).

The clock advances by the time between this process's probes as the broker stamped them, but by at most 3 s per gap: an outage or a
restart costs no lease. A worker is lost if no heartbeat of it came within 6 s of this clock. A claim is lost if its live worker's
heartbeats haven't listed it for 6 s.
"""

from __future__ import annotations

from collections.abc import KeysView

from topics.log.liveness import GAP_MS, LEASE_MS
from topics.types.session import Stage
from topics.workers import Heartbeat

REMEMBER_MS = 60_000
"""How long lost workers and unlisted claims are remembered: longer than any check of their claims takes to come."""
OFFLINE_MS = 10 * 60_000
"""A pool without a live run worker for this time returns its READY sessions to the queue (protocol 10)."""


class Leases:
    """Updated with the records of `polar.workers`, in log order."""

    def __init__(self) -> None:
        self.clock = 0
        """Log time since this process started, ms, at the newest probe; stands still while Kafka is away."""
        self._probed_at: int | None = None
        self._probe_seen_s: float | None = None
        self._newest = 0
        self._seen: dict[str, int] = {}
        """By worker: when its newest heartbeat came."""
        self._claims: dict[str, frozenset[str]] = {}
        """By worker: the claims in its newest heartbeat."""
        self._lost_workers: dict[str, int] = {}
        """When each lost worker's lease ended."""
        self._unlisted_since: dict[str, int] = {}
        """By claim: when its worker's heartbeats were first seen without it."""
        self._pool_seen: dict[str, int] = {}
        """By pool: when the newest heartbeat of a run worker came."""

    def now(self, monotonic_s: float) -> int:
        """`clock` plus this host's monotonic time since the newest probe, at most 3 s; never runs backwards."""
        since = 0 if self._probe_seen_s is None else round((monotonic_s - self._probe_seen_s) * 1000)
        self._newest = max(self._newest, self.clock + min(since, GAP_MS))
        return self._newest

    def on_probe(self, append_ms: int, monotonic_s: float) -> None:
        """One of this process's own probes: the broker's time, and when this host read it."""
        self._probe_seen_s = monotonic_s
        gap = 0 if self._probed_at is None else max(0, append_ms - self._probed_at)
        self._probed_at = append_ms
        self.clock += min(gap, GAP_MS)
        if gap > GAP_MS:
            self._seen = dict.fromkeys(self._seen, self.clock)
            self._unlisted_since = dict.fromkeys(self._unlisted_since, self.clock)
            self._pool_seen = dict.fromkeys(self._pool_seen, self.clock)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        worker = heartbeat.worker_id
        self._lost_workers.pop(worker, None)
        self._seen[worker] = self.clock
        self._claims[worker] = frozenset(claim for slots in heartbeat.stages for claim in slots.claims)
        for claim in self._unlisted_since.keys() & self._claims[worker]:
            del self._unlisted_since[claim]
        for slots in heartbeat.stages:
            if slots.stage is Stage.RUN:
                self._pool_seen[slots.pool] = self.clock

    def pop_lost_workers(self) -> list[str]:
        """Remove and return the workers whose lease has ended."""
        lost = [worker for worker, seen in self._seen.items() if self.clock - seen > LEASE_MS]
        for worker in lost:
            del self._seen[worker]
            del self._claims[worker]
            self._lost_workers[worker] = self.clock
        self._lost_workers = self._remembered(self._lost_workers)
        # Claims that ended before a heartbeat ever listed them.
        self._unlisted_since = self._remembered(self._unlisted_since)
        return lost

    def lost_claims(self, worker_id: str, claims: KeysView[str]) -> list[str]:
        """The granted claims of a worker that have lost their lease.

        Must be called with all granted claims whenever the clock has advanced: the absence of a claim counts from the first call that
        sees it.
        """
        if worker_id in self._lost_workers or self.clock - self._seen.get(worker_id, self.clock) > LEASE_MS:
            return list(claims)
        unlisted = claims - self._claims.get(worker_id, frozenset())
        since = {claim: self._unlisted_since.setdefault(claim, self.clock) for claim in unlisted}
        lost = [claim for claim, first_seen in since.items() if self.clock - first_seen > LEASE_MS]
        for claim in lost:
            del self._unlisted_since[claim]
        return lost

    def is_offline(self, pool: str) -> bool:
        """Whether no run worker of the pool has lived for `OFFLINE_MS`."""
        return self.clock - self._pool_seen.setdefault(pool, self.clock) > OFFLINE_MS

    def _remembered(self, instants: dict[str, int]) -> dict[str, int]:
        return {name: at for name, at in instants.items() if self.clock - at <= REMEMBER_MS}
