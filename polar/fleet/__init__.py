"""For trainers: pause the fleet, publish the version of the new weights, let it go on (protocol 18).

    async with fleet.paused(settings) as pause:
        ...  # no model call is at any engine: give them their new weights
        await pause.publish(version)

Each function takes its own connection; `Controls` keeps one, for many updates. What a pause is to calls and to run clocks: docs/fleet.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from polar.fleet import draining
from polar.fleet.controls import STILL_S, Controls, InFlight, Pause, Standing, Still
from polar.fleet.errors import Busy, FleetError, Lost, NotDrained, NotStill
from topics.environment.settings import Settings

__all__ = [
    "Busy",
    "Controls",
    "FleetError",
    "InFlight",
    "Lost",
    "NotDrained",
    "NotStill",
    "Pause",
    "Standing",
    "Still",
    "drain",
    "pause",
    "paused",
    "publish",
    "resume",
    "state",
]


@asynccontextmanager
async def paused(
    settings: Settings, *, in_flight: InFlight = "finish", deadline_s: float = STILL_S, force: bool = False
) -> AsyncIterator[Pause]:
    """A still fleet for as long as the block, as `Controls.paused`."""
    async with (
        Controls(settings) as controls,
        controls.paused(in_flight=in_flight, deadline_s=deadline_s, force=force) as pause,
    ):
        yield pause


async def pause(
    settings: Settings, *, in_flight: InFlight = "finish", deadline_s: float = STILL_S, force: bool = False
) -> Still:
    """Pauses the fleet until someone resumes it, as `Controls.pause`."""
    async with Controls(settings) as controls:
        return await controls.pause(in_flight=in_flight, deadline_s=deadline_s, force=force)


async def resume(settings: Settings) -> Standing:
    """Ends any pause and any draining; what stood before, as `Controls.resume`."""
    async with Controls(settings) as controls:
        return await controls.resume()


async def publish(settings: Settings, version: int, engine: str | None = None, *, force: bool = False) -> None:
    """Says which weights are served, as `Controls.publish`."""
    async with Controls(settings) as controls:
        await controls.publish(version, engine, force=force)


async def state(settings: Settings) -> Standing:
    """What stands now. Raises NotReady."""
    async with Controls(settings) as controls:
        return await controls.standing()


async def drain(
    settings: Settings,
    workers: Collection[str] = (),
    *,
    deadline_s: float | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Drains the whole fleet, or the named processes, as `draining.whole` and `draining.processes`."""
    async with Controls(settings) as controls:
        if workers:
            await draining.processes(controls, workers, deadline_s=deadline_s, progress=progress)
        else:
            await draining.whole(controls, deadline_s=deadline_s, progress=progress)
