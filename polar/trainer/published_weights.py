"""`PublishedWeights`: gives engines a trainer's weights inside a pause of the fleet, and publishes their version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polar.fleet import Fleet, Publication
from topics.types.errors import NotReadyError


class PublishedWeights:
    """The weights that this process published last, on an open fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._publication: Publication | None = None

    def is_current(self, version: int) -> bool:
        """Whether this process published the version last."""
        return self._publication is not None and self._publication.version == version

    def current(self) -> Publication:
        """The last publication. Raises NotReadyError if there is none."""
        if self._publication is None:
            raise NotReadyError("rollouts were requested before a version of the weights was published")
        return self._publication

    async def publish(self, version: int, push: Callable[[], None] | None = None) -> None:
        """Publish the version in a pause. `push` gives the engine the weights inside the pause; None: the engine has them.

        The first publication may roll back what other processes published. Raises FleetError, and what `push` does.
        """
        # A predecessor may have died in a pause of its own, or have published versions that no checkpoint has.
        is_first = self._publication is None
        async with self._fleet.paused(force=is_first) as pause:
            if push is not None:
                await asyncio.to_thread(push)
            self._publication = await pause.publish(version, force=is_first)
