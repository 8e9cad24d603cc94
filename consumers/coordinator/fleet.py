"""What `polar.fleet` says, as one coordinator process knows it: told by its follower, read by the lending and by its keepers.

Who changes it is no matter of the coordinator's.
"""

from __future__ import annotations

from topics.fleet import FleetRecord, FleetState


class FleetView:
    """The newest state of the fleet; before any was written it runs."""

    def __init__(self) -> None:
        self._state = FleetState(generation=0)

    def apply(self, record: FleetRecord) -> None:
        """A record of `polar.fleet`."""
        if isinstance(record, FleetState) and record.counts_after(self._state):
            self._state = record

    @property
    def generation(self) -> int:
        """Echoed in the heartbeat."""
        return self._state.generation

    @property
    def paused(self) -> bool:
        """Model calls wait, and run clocks stand still."""
        return self._state.paused

    @property
    def draining(self) -> bool:
        """No slot is lent."""
        return self._state.draining
