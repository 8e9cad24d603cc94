"""Who lives and how far each has come with what the fleet was told: a fold over `polar.workers`, in the broker's time.

Invariant: a process that may still act on an older generation is never missing. Whoever began before that generation was written has a
heartbeat on the log before it; whoever begins later reads the generation before it acts. A lease ends after 6 s of log time without a
heartbeat; a wider gap than 3 s between any two records was an outage, after which leases start anew.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.workers import Heartbeat, Sign

LEASE_MS = 6_000
GAP_MS = 3_000


class Echoes:
    """Fed with the records of `polar.workers` in their order."""

    def __init__(self) -> None:
        self._clock = 0
        self._newest: int | None = None
        self._heard: dict[str, tuple[Heartbeat, int]] = {}

    def hear(self, sign: Sign, append_ms: int) -> None:
        """Takes in one record; `append_ms` is the broker's time."""
        self._tick(append_ms)
        if not isinstance(sign, Heartbeat):
            return
        if sign.worker_id not in self._heard and sign.address is not None:
            # Who newly has an address has it alone: the one that was killed there needn't be waited for.
            self._forget(lambda beat: beat.role == sign.role and beat.address == sign.address)
        self._heard[sign.worker_id] = sign, self._clock

    @property
    def live(self) -> dict[str, Heartbeat]:
        """The newest heartbeat of each process with a lease, by worker id; those that leave, too."""
        return {worker_id: beat for worker_id, (beat, _) in self._heard.items()}

    def of(self, role: str) -> list[Heartbeat]:
        """Those of one role."""
        return [beat for beat in self.live.values() if beat.role == role]

    def behind(self, role: str, generation: int) -> list[Heartbeat]:
        """Those of one role that don't know of a generation yet."""
        return [beat for beat in self.of(role) if beat.fleet_generation < generation]

    def _tick(self, append_ms: int) -> None:
        gap = 0 if self._newest is None else append_ms - self._newest
        self._newest = append_ms
        self._clock += min(max(gap, 0), GAP_MS)
        if gap > GAP_MS:
            self._heard = {worker_id: (beat, self._clock) for worker_id, (beat, _) in self._heard.items()}
        self._heard = {name: heard for name, heard in self._heard.items() if self._clock - heard[1] <= LEASE_MS}

    def _forget(self, is_meant: Callable[[Heartbeat], bool]) -> None:
        self._heard = {name: heard for name, heard in self._heard.items() if not is_meant(heard[0])}
