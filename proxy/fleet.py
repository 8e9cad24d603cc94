"""What the trainer says of the fleet: paused or running, and which weights are served.

While the fleet is paused new calls wait; those under way go on, and end with no version if the version changed under them.
"""

from __future__ import annotations

import asyncio

from proxy.errors import Refusal, Refused
from topics.fleet import FleetRecord, FleetState, PolicyVersion

PAUSE_WAIT_S = 120.0
"""How long a call waits for the fleet to run: what it waits for Kafka, too."""
RETRY_AFTER_S = 10


class Fleet:
    """The state that `polar.fleet` tells."""

    def __init__(self) -> None:
        self._state = FleetState(generation=0)
        self._policy: int | None = None
        self._running = asyncio.Event()
        self._running.set()

    @property
    def generation(self) -> int:
        """Of the last state seen; heartbeats echo it."""
        return self._state.generation

    @property
    def paused(self) -> bool:
        """Whether new calls wait."""
        return self._state.paused

    @property
    def weights(self) -> tuple[int | None, int]:
        """(policy version, generation): a call sampled from one version only if this was the same before it and after."""
        return self._policy, self._state.generation

    def apply(self, record: FleetRecord) -> None:
        """Takes in a record of `polar.fleet`."""
        match record:
            case FleetState():
                self._state = record
                if record.paused:
                    self._running.clear()
                else:
                    self._running.set()
            case PolicyVersion():
                self._policy = record.version

    async def runs(self) -> None:
        """Returns when the fleet runs. Raises Refused after 120 s."""
        if self._running.is_set():
            return
        try:
            async with asyncio.timeout(PAUSE_WAIT_S):
                await self._running.wait()
        except TimeoutError:
            raise Refused(
                Refusal.OVERLOADED, "the model is paused for an update; try again", retry_after_s=RETRY_AFTER_S
            ) from None
