"""Who lives, in log time (protocol 12).

The clock advances by what lies between this process's probes as the broker stamped them, but never by more than 3 s for a gap: an
outage or a restart costs no lease. A worker is lost when 6 s of this clock hold no heartbeat of it; a claim when its live worker's
heartbeats haven't held it for as long.
"""

from __future__ import annotations

from collections.abc import KeysView

from topics.log.liveness import GAP_MS, LEASE_MS
from topics.types.session import Stage
from topics.workers import Heartbeat

REMEMBER_MS = 60_000
OFFLINE_MS = 10 * 60_000
"""A pool without a live run worker for so long gives its READY sessions back (protocol 10)."""


class Leases:
    """Fed with what `polar.workers` holds, in log order."""

    def __init__(self) -> None:
        self.clock = 0
        """Log time since this process started, ms, as of the newest probe; stands still while Kafka is away."""
        self._probed_at: int | None = None
        self._probe_seen_s: float | None = None
        self._newest = 0
        self._seen: dict[str, int] = {}
        self._held: dict[str, frozenset[str]] = {}
        self._gone: dict[str, int] = {}
        """Workers whose lease has ended, and when; remembered for as long as a claim of theirs may still be judged."""
        self._absent_since: dict[str, int] = {}
        self._lit_at: dict[str, int] = {}

    def now(self, monotonic_s: float) -> int:
        """`clock` carried on by this host's monotonic clock since the newest probe, by 3 s at most; never runs backwards."""
        since = 0 if self._probe_seen_s is None else round((monotonic_s - self._probe_seen_s) * 1000)
        self._newest = max(self._newest, self.clock + min(since, GAP_MS))
        return self._newest

    def probe(self, append_ms: int, monotonic_s: float) -> None:
        """One of this process's own probes: the broker's time, and when this host read it."""
        self._probe_seen_s = monotonic_s
        gap = 0 if self._probed_at is None else max(0, append_ms - self._probed_at)
        self._probed_at = append_ms
        self.clock += min(gap, GAP_MS)
        if gap > GAP_MS:
            self._seen = dict.fromkeys(self._seen, self.clock)
            self._absent_since = dict.fromkeys(self._absent_since, self.clock)
            self._lit_at = dict.fromkeys(self._lit_at, self.clock)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        worker = heartbeat.worker_id
        self._gone.pop(worker, None)
        self._seen[worker] = self.clock
        self._held[worker] = frozenset(claim for slots in heartbeat.stages for claim in slots.claims)
        for claim in self._absent_since.keys() & self._held[worker]:
            del self._absent_since[claim]
        for slots in heartbeat.stages:
            if slots.stage is Stage.RUN:
                self._lit_at[slots.pool] = self.clock

    def gone(self) -> list[str]:
        """Takes out the workers whose lease has ended."""
        lost = [worker for worker, seen in self._seen.items() if self.clock - seen > LEASE_MS]
        for worker in lost:
            del self._seen[worker]
            del self._held[worker]
            self._gone[worker] = self.clock
        self._gone = {worker: since for worker, since in self._gone.items() if self.clock - since <= REMEMBER_MS}
        # Claims that ended before a heartbeat ever showed them.
        self._absent_since = {c: since for c, since in self._absent_since.items() if self.clock - since <= REMEMBER_MS}
        return lost

    def lost(self, worker_id: str, claims: KeysView[str]) -> list[str]:
        """Which of the granted claims of a worker have lost their lease. Ask for all in hand, whenever the clock has gone on: a claim's
        absence from its worker's heartbeats counts from when it was first noticed."""
        if worker_id in self._gone or self.clock - self._seen.get(worker_id, self.clock) > LEASE_MS:
            return list(claims)
        absent = claims - self._held.get(worker_id, frozenset())
        since = {claim: self._absent_since.setdefault(claim, self.clock) for claim in absent}
        lost = [claim for claim, noticed in since.items() if self.clock - noticed > LEASE_MS]
        for claim in lost:
            del self._absent_since[claim]
        return lost

    def is_offline(self, pool: str) -> bool:
        """Whether no run worker of the pool has lived for `OFFLINE_MS`."""
        return self.clock - self._lit_at.setdefault(pool, self.clock) > OFFLINE_MS
