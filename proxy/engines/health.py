"""Health of one server of an engine, from the results of calls, and from health checks while no call succeeds.

A server that takes no connection is down at once. A server that fails health checks is down after the second: a busy server may miss one.
It is up again as soon as a check succeeds, or a call that had no other server. After each failure, and after each kept connection that the
server closed, the server may have been started again, so its process is identified anew before an answer counts. Invariant: a process that
ends closes its connections, so an answer of the next one never counts as an answer of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from proxy.engines.base import Engine
from proxy.engines.context import ContextReader
from proxy.engines.process import LOGIN, Process, ReportsStart
from proxy.errors import EngineError

CHECK_S = 2.0
"""Interval of checks: a dead server is noticed within two, before most harnesses give up."""
MISSED = 2
"""Failed checks in a row until the server is down."""
UNIDENTIFIED_S = 30.0
"""How long a server that was too slow to report its start isn't asked again: each time a call waits for it. After any other failure to read
its start, it isn't asked again for `CHECK_S`."""

log = structlog.get_logger(__name__)


class Server:
    """One of an engine's servers."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self.is_up = True
        self._reporting = engine if isinstance(engine, ReportsStart) else None
        self._identified: tuple[Process, int] | None = None
        """A process, and `_breaks` before it was identified."""
        self._identifying: asyncio.Task[Process | None] | None = None
        self._identify_after = float("-inf")
        self._context = ContextReader(url, engine)
        self._failures = 0
        self._on_process: Callable[[Process], None] = lambda _: None
        self._missed = 0
        self._answered_at = float("-inf")
        self._watching: asyncio.Task[None] | None = None

    async def start(self, on_process: Callable[[Process], None]) -> None:
        """Open connections and start health checks. `on_process` is called with each process that is identified."""
        self._on_process = on_process
        await self.engine.start()
        self._watching = asyncio.create_task(self._watch(), name=f"health of {self.url}")

    async def stop(self) -> None:
        """Stop health checks and close connections."""
        tasks = [task for task in (self._watching, self._identifying) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._context.stop()
        await self.engine.stop()

    @property
    def process(self) -> Process | None:
        """The process that answers; None: it must be identified."""
        if self._identified is None or self._identified[1] != self._breaks:
            return None
        return self._identified[0]

    @property
    def _breaks(self) -> int:
        """Number of events after which the server may be another process."""
        return self._failures if self._reporting is None else self._failures + self._reporting.closings

    def mark_up(self) -> None:
        """Record an answer of the server."""
        self._missed = 0
        self._answered_at = self._now()
        if not self.is_up:
            self.is_up = True
            log.info("engine's server is up", action="engine_up", url=self.url)

    def mark_failed(self) -> None:
        """Record a failure after which the server may be another process."""
        self._failures += 1
        self._identify_after = float("-inf")

    async def identify(self) -> Process | None:
        """The process that answers now; None if the server doesn't answer when it started."""
        identifying = self._identification()
        return None if identifying is None else await asyncio.shield(identifying)

    def _identification(self) -> asyncio.Task[Process | None] | None:
        """The request for the process's start, one at a time; None if one failed just now."""
        if self._identifying is None and self._now() >= self._identify_after:
            self._identifying = asyncio.create_task(self._identify(), name=f"process of {self.url}")
        return self._identifying

    async def _identify(self) -> Process | None:
        breaks = self._breaks
        try:
            started_ms = None if self._reporting is None else await self._reporting.started_ms()
        except EngineError as error:
            self._identify_after = self._now() + (UNIDENTIFIED_S if error.code == "timeout" else CHECK_S)
            log.info("an engine's start is unread", action="start_unread", url=self.url, code=error.code)
            return None
        except Exception as error:  # of a plug-in
            self._identify_after = self._now() + CHECK_S
            log.error(
                "reading an engine's start failed", action="start_fault", url=self.url, error=type(error).__name__
            )
            return None
        finally:
            self._identifying = None
        process = Process(LOGIN.sub("", self.url), started_ms)
        self._identified = process, breaks
        self._on_process(process)
        return process

    async def context(self) -> int | None:
        """The length of its context in tokens; None if it is unknown. Never raises EngineError.

        The server is asked once, and again after a failure or a closed connection. While it is down, its last statement counts.
        """
        return await self._context.current(self._breaks) if self.is_up else self._context.last

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

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
        self.mark_failed()
        self._missed += 1
        if self._missed >= MISSED:
            self.mark_down()

    async def _watch(self) -> None:
        while True:
            # Found before the next publication, a process is proven to serve it without comparing clocks.
            if self.is_up and self.process is None:
                self._identification()
            await asyncio.sleep(CHECK_S)
            if not self.is_up or self._now() - self._answered_at >= CHECK_S:
                await self.check()
