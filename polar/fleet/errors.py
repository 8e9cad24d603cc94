"""Errors of the fleet as a whole. Each message says what to do. On the command line they end with exit code 1.

Beside these, a version or a worker that can't be raises InputError, and an unreachable Kafka raises NotReadyError.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.workers import Heartbeat


class FleetError(RuntimeError):
    """Base of the errors below."""


class PausedByOtherError(FleetError):
    """Another client has paused the fleet. Wait, or take the pause over with `force`."""


class PauseLostError(FleetError):
    """Another client has ended the pause or taken it over: calls may have been sampled meanwhile."""


class DrainTimeoutError(FleetError):
    """Sessions or processes were still active at the deadline. Draining continues, and no new work begins."""


class PauseTimeoutError(FleetError):
    """Calls were still at engines at the deadline. The fleet runs again."""

    def __init__(self, deadline_s: float, waiting: Sequence[Heartbeat], generation: int) -> None:
        self.proxies = [beat.worker_id for beat in waiting]
        """Worker ids of the proxies that weren't paused."""
        reasons = "; ".join(_reason(beat, generation) for beat in waiting) or "the heartbeats couldn't be read"
        super().__init__(
            f"the fleet was not paused after {deadline_s:g} s, and runs again: {reasons}. Allow more time; abort calls instead of letting "
            "them finish (in_flight abort); kill a process that hangs: it no longer counts once its lease has expired, after 6 s"
        )


def _reason(beat: Heartbeat, generation: int) -> str:
    name = f"{beat.worker_id} (pid {beat.pid} on {beat.host})"
    if beat.fleet_generation < generation:
        return f"{name} hasn't read of the pause"
    return f"{name} has {beat.calls} calls at engines"
