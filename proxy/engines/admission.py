"""Who may ask an engine now: so many calls at once, so many that wait their turn, in order, and none for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.errors import EngineError

QUEUED = 1024
"""Calls that wait at most; harnesses hold still for the answer, so they are the sessions that one proxy can serve."""
WAIT_S = 60.0
"""For one call's turn, its stream's keep-alives flowing."""
PATIENT_S = 600.0
"""For one that a pause of the fleet has held, with all the others that come at its end."""
RETRY_AFTER_S = 5


class Admission:
    """Turns at one engine."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = asyncio.Semaphore(limit)
        self.under_way = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, *, patiently: bool = False) -> AsyncIterator[None]:
        """Waits for a turn and holds it. Raises EngineError `busy` where it takes too long, or, but for a patient one, too many wait."""
        await self._admitted(patiently=patiently)
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._free.release()

    async def _admitted(self, *, patiently: bool) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        wait_s = PATIENT_S if patiently else WAIT_S
        if self.waiting >= QUEUED and not patiently:
            raise self._busy(f"{self.waiting} wait")
        self.waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise self._busy(f"one waited {wait_s:g} s") from None
        finally:
            self.waiting -= 1

    def _busy(self, why: str) -> EngineError:
        return EngineError("busy", f"{self._limit} calls are under way and {why}", retry_after_s=RETRY_AFTER_S)
