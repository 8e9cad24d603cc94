"""A stage's budget: seconds of work in which Kafka was there. Time that the worker sees Kafka gone doesn't count (protocol 14)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from topics.waiting.first_done import first_done

TICK_S = 0.25
"""How often Kafka's presence is looked at: an outage is charged for so long at most."""

T = TypeVar("T")


class Overrun(Exception):  # noqa: N818 - named for what happened
    """The budget was used up before the work was done."""


class Budget:
    """Counts from its making, while `is_counting` says so."""

    def __init__(self, seconds: float, is_counting: Callable[[], bool]) -> None:
        self.seconds = seconds
        self._left = seconds
        self._is_counting = is_counting
        self._at = time.monotonic()

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    async def spent(self) -> None:
        """Return when the budget is used up."""
        while not self.is_spent:
            await asyncio.sleep(min(TICK_S, self._left))
            now = time.monotonic()
            if self._is_counting():
                self._left -= now - self._at
            self._at = now

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; cancelled, and awaited to its end, when the budget is used up. Raises Overrun, and what it raises."""
        done = await first_done(work, self.spent())
        if work not in done:
            raise Overrun
        result: T = done[work]
        return result

    @asynccontextmanager
    async def alarm(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set when the budget is used up, for work that wants to end itself."""
        rings = asyncio.Event()

        async def ring() -> None:
            await self.spent()
            rings.set()

        ringing = asyncio.create_task(ring(), name="budget-alarm")
        try:
            yield rings
        finally:
            ringing.cancel()
            await asyncio.wait({ringing})
