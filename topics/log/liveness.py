"""Leases of processes in log time: a process lives while `polar.workers` has a heartbeat of it from the last 6 s (protocol 12).

Log time stands still while nobody writes. A gap of more than 3 s between two records means an outage for everyone and costs no lease.
"""

from __future__ import annotations

LEASE_MS = 6_000
"""Log time without a heartbeat after which a process is lost."""
GAP_MS = 3_000
"""A longer gap renews all leases."""


class Leases:
    """Leases by worker id; every record's time counts, in log order, whoever wrote it."""

    def __init__(self) -> None:
        self._clock = 0
        """Log time since the first record, ms."""
        self._newest: int | None = None
        self._renewed: dict[str, int] = {}

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._renewed

    def worker_ids(self) -> frozenset[str]:
        return frozenset(self._renewed)

    def tick(self, append_ms: int) -> list[str]:
        """Advance to a record's timestamp, Unix ms; return the workers whose leases have ended."""
        gap = 0 if self._newest is None else append_ms - self._newest
        self._newest = append_ms  # may go back with the broker's clock
        self._clock += min(max(gap, 0), GAP_MS)
        if gap > GAP_MS:
            self._renewed = dict.fromkeys(self._renewed, self._clock)
        ended = [worker_id for worker_id, at in self._renewed.items() if self._clock - at > LEASE_MS]
        for worker_id in ended:
            self.end(worker_id)
        return ended

    def renew(self, worker_id: str) -> None:
        """Renew a lease: the record of the last `tick` was the worker's heartbeat."""
        self._renewed[worker_id] = self._clock

    def end(self, worker_id: str) -> None:
        """End a lease early: another process replaced the worker."""
        del self._renewed[worker_id]
