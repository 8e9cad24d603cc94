"""Health of one server of an engine, from the results of calls, and from health checks while no call succeeds.

A server that takes no connection is down at once. A server that fails health checks is down after the second: a busy server may miss one.
It is up again as soon as a check succeeds, or a call that had no other server.
"""

from __future__ import annotations

import asyncio

import structlog

from proxy.engines.base import Engine

CHECK_S = 2.0
"""Interval of checks: a dead server is noticed within two, before most harnesses give up."""
MISSED = 2
"""Failed checks in a row until the server is down."""

log = structlog.get_logger(__name__)


class Server:
    """One of an engine's servers."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self.is_up = True
        self._missed = 0
        self._answered_at = float("-inf")
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open connections and start health checks."""
        await self.engine.start()
        self._watching = asyncio.create_task(self._watch(), name=f"health of {self.url}")

    async def stop(self) -> None:
        """Stop health checks and close connections."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.engine.stop()

    def mark_up(self) -> None:
        """Record an answer of the server."""
        self._missed = 0
        self._answered_at = asyncio.get_running_loop().time()
        if not self.is_up:
            self.is_up = True
            log.info("engine's server is up", action="engine_up", url=self.url)

    def mark_down(self) -> None:
        """Record that the server took no connection."""
        if self.is_up:
            self.is_up = False
            log.warning("engine's server is down", action="engine_down", url=self.url)

    async def check(self) -> None:
        """Make one health check."""
        try:
            healthy = await self.engine.is_healthy()
        except Exception as error:  # of a plug-in: its server is not known to be healthy
            log.error("a health check failed", action="health_fault", url=self.url, error=type(error).__name__)
            healthy = False
        if healthy:
            self.mark_up()
            return
        self._missed += 1
        if self._missed >= MISSED:
            self.mark_down()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(CHECK_S)
            if not self.is_up or clock() - self._answered_at >= CHECK_S:
                await self.check()
