"""Who has a lease, in the broker's time: a process lives while `polar.workers` holds a heartbeat of it from the last 6 s (protocol 12).

Log time stands still where nobody writes; a wider gap than 3 s between two records was an outage or a pause of all, and costs no lease.
"""

from __future__ import annotations

LEASE_MS = 6_000
"""Of log time without a heartbeat, after which a process is lost."""
GAP_MS = 3_000
"""A wider gap starts all leases anew."""


class Leases:
    """By worker id. Told the time of each record, in log order, whoever wrote it."""

    def __init__(self) -> None:
        self._clock = 0
        """Log time since the first record, ms."""
        self._newest: int | None = None
        self._renewed: dict[str, int] = {}

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._renewed

    def held(self) -> frozenset[str]:
        """Worker ids with a lease."""
        return frozenset(self._renewed)

    def tick(self, append_ms: int) -> list[str]:
        """A record lies on the log with this broker's time, in Unix ms; whose leases have ended by then."""
        gap = 0 if self._newest is None else append_ms - self._newest
        self._newest = append_ms  # earlier than the last one's where the broker's clock was put back
        self._clock += min(max(gap, 0), GAP_MS)
        if gap > GAP_MS:
            self._renewed = dict.fromkeys(self._renewed, self._clock)
        ended = [worker_id for worker_id, at in self._renewed.items() if self._clock - at > LEASE_MS]
        for worker_id in ended:
            self.end(worker_id)
        return ended

    def renew(self, worker_id: str) -> None:
        """The record of the last `tick` was its heartbeat."""
        self._renewed[worker_id] = self._clock

    def end(self, worker_id: str) -> None:
        """Before its time: another process has taken its place."""
        del self._renewed[worker_id]
