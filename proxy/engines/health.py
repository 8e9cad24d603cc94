"""Whether one server of an engine is up, by what calls find and by asking it while they tell nothing.

A server that takes no connection is down at once, one that doesn't say it is healthy after two questions: a busy server may miss one. It is
up again as soon as it says so, or answers a call that had nowhere else to go.
"""

from __future__ import annotations

import asyncio

import structlog

from proxy.engines.base import Engine

CHECK_S = 2.0
MISSED = 2
"""Questions in a row without the right answer, and the server is down."""

log = structlog.get_logger(__name__)


class Server:
    """One of an engine's servers."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self.is_up = True
        self._missed = 0
        self._heard_at = float("-inf")
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Opens its connections and begins to watch it."""
        await self.engine.start()
        self._watching = asyncio.create_task(self._watch(), name=f"health of {self.url}")

    async def stop(self) -> None:
        """Ends both."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.engine.stop()

    def heard(self) -> None:
        """It answered."""
        self._missed = 0
        self._heard_at = asyncio.get_running_loop().time()
        if not self.is_up:
            self.is_up = True
            log.info("engine's server is up", action="engine_up", url=self.url)

    def lost(self) -> None:
        """It took no connection."""
        if self.is_up:
            self.is_up = False
            log.warning("engine's server is down", action="engine_down", url=self.url)

    async def check(self) -> None:
        """Asks it once."""
        try:
            healthy = await self.engine.is_healthy()
        except Exception as error:  # a plug-in's; its server can't be called healthy
            log.error("health can't be asked", action="health_fault", url=self.url, error=type(error).__name__)
            healthy = False
        if healthy:
            self.heard()
            return
        self._missed += 1
        if self._missed >= MISSED:
            self.lost()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(CHECK_S)
            if not self.is_up or clock() - self._heard_at >= CHECK_S:
                await self.check()
