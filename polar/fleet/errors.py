"""What goes wrong with the fleet as a whole; each message says what to do. Exit code 1 on the command line.

- `Busy`: another hand has paused the fleet; wait, or take it over.
- `NotStill`: a pause didn't come about in time; the fleet runs again.
- `Lost`: someone else has ended a pause, or taken it over.
- `NotDrained`: work was still in hand at the deadline; it goes on, and no new work begins.

What else is raised: InputError for a version or a worker that can't be, NotReady without Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.workers import Heartbeat


class FleetError(RuntimeError):
    """One of those below."""


class Busy(FleetError):  # noqa: N818 - named for what is so, here and below
    """Another hand has paused the fleet."""


class Lost(FleetError):  # noqa: N818
    """Someone else has ended the pause, or taken it over: calls may have been sampled meanwhile."""


class NotDrained(FleetError):  # noqa: N818
    """Work is still in hand."""


class NotStill(FleetError):  # noqa: N818
    """The fleet was not still in time."""

    def __init__(self, deadline_s: float, waiting: Sequence[Heartbeat], generation: int) -> None:
        self.proxies = [beat.worker_id for beat in waiting]
        """Those that weren't still, by worker id."""
        told = "; ".join(_why(beat, generation) for beat in waiting) or "the heartbeats couldn't be read"
        super().__init__(
            f"the fleet was not still after {deadline_s:g} s, and runs again: {told}. Allow more time; end calls instead of letting them "
            "finish (in_flight abort); kill a process that hangs: it counts no more once its lease has ended, after 6 s"
        )


def _why(beat: Heartbeat, generation: int) -> str:
    whose = f"{beat.worker_id} (pid {beat.pid} on {beat.host})"
    if beat.fleet_generation < generation:
        return f"{whose} hasn't heard of the pause"
    return f"{whose} has {beat.calls} calls at engines"
