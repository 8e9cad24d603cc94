"""Who lives and how far each has come with what the fleet was told: a fold over `polar.workers`, in the broker's time.

Invariant: a process that may still act on an older generation is never missing. Whoever began before that generation was written has a
heartbeat on the log before it; whoever begins later reads the generation before it acts.
"""

from __future__ import annotations

from collections.abc import Mapping

from topics.log.liveness import Leases
from topics.workers import Heartbeat, Sign


class Echoes:
    """Fed with the records of `polar.workers` in their order."""

    def __init__(self) -> None:
        self._leases = Leases()
        self._heard: dict[str, Heartbeat] = {}

    def hear(self, sign: Sign, append_ms: int) -> None:
        """Takes in one record; `append_ms` is the broker's time."""
        for worker_id in self._leases.tick(append_ms):
            del self._heard[worker_id]
        if not isinstance(sign, Heartbeat):
            return
        if sign.worker_id not in self._heard and sign.address is not None:
            self._supersede(sign)
        self._leases.renew(sign.worker_id)
        self._heard[sign.worker_id] = sign

    @property
    def live(self) -> Mapping[str, Heartbeat]:
        """The newest heartbeat of each process with a lease, by worker id; those that leave, too."""
        return self._heard

    def of(self, role: str) -> list[Heartbeat]:
        """Those of one role."""
        return [beat for beat in self.live.values() if beat.role == role]

    def behind(self, role: str, generation: int) -> list[Heartbeat]:
        """Those of one role that don't know of a generation yet."""
        return [beat for beat in self.of(role) if beat.fleet_generation < generation]

    def _supersede(self, by: Heartbeat) -> None:
        """Who newly has an address has it alone: the one that was killed there needn't be waited for."""
        for beat in [beat for beat in self.of(by.role) if beat.address == by.address]:
            self._leases.end(beat.worker_id)
            del self._heard[beat.worker_id]
