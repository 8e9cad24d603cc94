"""Which processes live, and which generation of the fleet's state each has read: a fold over `polar.workers`, in the broker's time.

Invariant: a process that may still act on an older generation is never missing. A process that began before a generation was written has
an earlier heartbeat on the log. A process that begins later reads the generation before it acts.
"""

from __future__ import annotations

from collections.abc import Mapping

from topics.log.liveness import Leases
from topics.workers import Heartbeat, Sign


class Acknowledgements:
    """Live processes by their newest heartbeat. `add` takes the records of `polar.workers` in log order."""

    def __init__(self) -> None:
        self._leases = Leases()
        self._newest: dict[str, Heartbeat] = {}

    def add(self, record: Sign, append_ms: int) -> None:
        """Fold one record. `append_ms`: the broker's time, unix ms."""
        for worker_id in self._leases.tick(append_ms):
            del self._newest[worker_id]
        if not isinstance(record, Heartbeat):
            return
        if record.worker_id not in self._newest and record.address is not None:
            self._remove_predecessor(record)
        self._leases.renew(record.worker_id)
        self._newest[record.worker_id] = record

    @property
    def live(self) -> Mapping[str, Heartbeat]:
        """The newest heartbeat of each process with a lease, by worker id. Processes that are leaving are included."""
        return self._newest

    def of(self, role: str) -> list[Heartbeat]:
        """The heartbeats of one role."""
        return [beat for beat in self.live.values() if beat.role == role]

    def behind(self, role: str, generation: int) -> list[Heartbeat]:
        """The heartbeats of one role that report an older generation."""
        return [beat for beat in self.of(role) if beat.fleet_generation < generation]

    def _remove_predecessor(self, new: Heartbeat) -> None:
        """A process with a new address is its only user: nobody must wait for the killed process that had it before."""
        for beat in [beat for beat in self.of(new.role) if beat.address == new.address]:
            self._leases.end(beat.worker_id)
            del self._newest[beat.worker_id]
