"""How often, and how fast, what died is started again: pauses that double, and a budget."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from topics.waiting.backoff import Backoff

PAUSES = Backoff(first_s=0.2, longest_s=5.0)
STEADY_S = 10.0
"""What lived for so long has started well: its death counts as the first again."""
FAST_DEATHS = 20
"""So many in a row are borne: some 90 s, since no part can start while Kafka is away."""


class Patience:
    """One thing's deaths. `began` at each of its starts, then `pause` at its end."""

    def __init__(self) -> None:
        self._deaths = 0
        self._started = 0.0

    def began(self) -> None:
        self._started = time.monotonic()

    def pause(self) -> float | None:
        """Seconds to wait before starting it again; None: it has died too often."""
        if time.monotonic() - self._started > STEADY_S:
            self._deaths = 0
        self._deaths += 1
        if self._deaths > FAST_DEATHS:
            return None
        return PAUSES.pause_s(self._deaths)


async def rest(pause_s: float, stopping: asyncio.Event) -> None:
    """Wait for so long, or until the stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(pause_s):
            await stopping.wait()
