"""For trainers: `Fleet` pauses the fleet, publishes the version of new weights and resumes it (protocol 18).

    async with Fleet(settings) as fleet, fleet.paused() as pause:
        ...  # no engine has a model call now: load the new weights
        await pause.publish(version)

docs/fleet.md says what a pause means for calls and for run clocks.
"""

from polar.fleet.errors import DrainTimeoutError, FleetError, PausedByOtherError, PauseLostError, PauseTimeoutError
from polar.fleet.fleet import Fleet, FleetStatus, InFlight, Pause, PauseReport
from topics.fleet import Publication

__all__ = [
    "DrainTimeoutError",
    "Fleet",
    "FleetError",
    "FleetStatus",
    "InFlight",
    "Pause",
    "PauseLostError",
    "PauseReport",
    "PauseTimeoutError",
    "PausedByOtherError",
    "Publication",
]
