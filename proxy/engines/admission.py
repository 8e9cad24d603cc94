"""Admission of calls to an engine: a limit on concurrent calls, and a bounded queue of waiting ones, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.errors import EngineError

QUEUED = 1024
"""Limit of waiting calls. Each blocks its harness, so this is also the number of sessions that one proxy can serve."""
WAIT_S = 60.0
"""Limit of one call's wait, while its stream sends keep-alives."""
PATIENT_S = 600.0
"""The same limit for a call that a pause of the fleet delayed: at the pause's end all such calls arrive at once."""
RETRY_AFTER_S = 5
"""A short call lasts about that long; then a turn may be free."""


class Admission:
    """Admission to one engine."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = asyncio.Semaphore(limit)
        self.under_way = 0
        self.waiting = 0

    @asynccontextmanager
    async def turn(self, *, patiently: bool = False) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises EngineError `busy` after too long a wait; also if too many wait, unless `patiently`."""
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
