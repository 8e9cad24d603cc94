"""A stage's budget: seconds of work while Kafka was there. Time in which the worker has no connection doesn't count (protocol 14)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from topics.waiting.first_done import first_done

TICK_S = 0.25
"""Between two checks of the connection: at most this much of an outage is charged."""

T = TypeVar("T")


class BudgetExceededError(Exception):
    """The budget was used up before the work was done."""


class Budget:
    """Starts when it is made; only time in which `is_counting()` is true is charged."""

    def __init__(self, seconds: float, is_counting: Callable[[], bool]) -> None:
        self._remaining_s = seconds
        self._is_counting = is_counting
        self._checked_at = time.monotonic()

    @property
    def remaining_s(self) -> float:
        """Seconds of work that remain, renewed every TICK_S while `spent` is awaited; at least TICK_S."""
        return max(self._remaining_s, TICK_S)

    @property
    def is_spent(self) -> bool:
        return self._remaining_s <= 0

    async def spent(self) -> None:
        """Return when the budget is used up."""
        while not self.is_spent:
            await asyncio.sleep(min(TICK_S, self._remaining_s))
            now = time.monotonic()
            if self._is_counting():
                self._remaining_s -= now - self._checked_at
            self._checked_at = now

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled and awaited to its end when the budget is used up.

        Raises BudgetExceededError and what `work` raises.
        """
        done = await first_done(work, self.spent())
        if work not in done:
            raise BudgetExceededError
        result: T = done[work]
        return result

    @asynccontextmanager
    async def alarm(self) -> AsyncIterator[asyncio.Event]:
        """An event that is set when the budget is used up, for work that ends by itself."""
        alarm = asyncio.Event()
        waiting = asyncio.create_task(self.spent(), name="budget-alarm")
        waiting.add_done_callback(lambda _: alarm.set())
        try:
            yield alarm
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})
