"""Follows Kafka while somebody looks at the page, and for some minutes longer.

Invariant: at most one `Live` is open. What it has read serves all requests; if it fails, the next request opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from analytics.live.fold import Snapshot
from analytics.live.recent import Recent
from analytics.live.view import Live
from topics.environment.settings import Settings

IDLE_S = 300.0
"""Reading stops this long after the last request: reloading the page must not read everything again."""
FIRST_S = 2.0
"""A request that begins the reading waits this long for what lies on the log; a small log is complete by then."""


class Looking:
    """The current state of everything that the page follows."""

    def __init__(self, live: Live, recent: Recent) -> None:
        self._live = live
        self.sessions = recent.sessions
        self.series = recent.series

    def snapshot(self) -> Snapshot:
        """The current figures. Raises the error that ended the reading."""
        return self._live.snapshot()


class Following:
    """Opens a `Live` at the first use. Call `close` at the end."""

    def __init__(self, settings: Settings, *, idle_s: float = IDLE_S) -> None:
        self._settings = settings
        self._idle_s = idle_s
        self._lock = asyncio.Lock()
        self._live: Live | None = None
        self._looking: Looking | None = None
        self._users = 0
        self._closing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        """The end of the `Live` before."""
        self.abandoned = asyncio.Event()
        """Set once nobody has used the page for `idle_s`."""

    @property
    def is_open(self) -> bool:
        """Whether Kafka is being followed."""
        return self._live is not None

    @property
    def users(self) -> int:
        """Requests and streams in progress."""
        return self._users

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Looking]:
        """The current state, kept up to date while the context lasts. Raises NotReadyError without Kafka or its topics."""
        with self.in_use():
            yield await self._opened()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Somebody uses the page, perhaps without Kafka: nothing is closed meanwhile."""
        self._users += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self.count_down()

    def count_down(self) -> None:
        """Close in `idle_s`, unless somebody comes before."""
        self._closing = asyncio.create_task(self._close_later(), name="page-idle")

    async def close(self) -> None:
        """Stop reading."""
        if self._closing is not None:
            self._closing.cancel()
        async with self._lock:
            await self._close()

    async def _opened(self) -> Looking:
        async with self._lock:
            await self._ended()
            if self._looking is not None:
                try:
                    self._looking.snapshot()
                except Exception:
                    await self._close()
                    raise
                return self._looking
            recent = Recent()
            live = Live(self._settings, recent=recent)
            await live.__aenter__()
            self._live = live
            self._looking = Looking(live, recent)
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await live.caught_up()
            return self._looking

    async def _close_later(self) -> None:
        await asyncio.sleep(self._idle_s)
        async with self._lock:
            if not self._users:
                await self._close()
                self.abandoned.set()

    async def _close(self) -> None:
        live, self._live, self._looking = self._live, None, None
        if live is not None:
            self._ending = asyncio.create_task(live.__aexit__(), name="page-end")
        await self._ended()

    async def _ended(self) -> None:
        """Wait for the end of the `Live` before. Whoever waits may be cancelled; half an end would leave consumers that read on."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
