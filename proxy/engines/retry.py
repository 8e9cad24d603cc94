"""Retries of calls to engines after overload, server errors and broken connections, within seconds that no harness notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.errors import EngineError

PAUSES_S = (0.25, 1.0)
"""Pauses before the second and the third attempt, unless the engine names a time of its own."""
BUDGET_S = 30.0
"""Time from the first attempt after which none begins."""

T = TypeVar("T")


async def with_retries(attempt: Callable[[], Awaitable[T]], *, has_other: Callable[[], bool] = lambda: False) -> T:
    """The first answer of up to three attempts. Raises the last attempt's EngineError.

    `has_other`: True if the next attempt meets another server. That attempt ignores the time that the last server named, and an
    unreachable server doesn't count as an attempt.
    """
    clock = asyncio.get_running_loop().time
    ends = clock() + BUDGET_S
    pauses = iter(PAUSES_S)
    while True:
        wait = 0.0
        try:
            return await attempt()
        except EngineError as fault:
            if not fault.retryable:
                raise
            other = has_other()
            if fault.code != "unreachable" or not other:
                pause = next(pauses, None)
                if pause is None:
                    raise
                wait = pause if fault.retry_after_s is None or other else float(fault.retry_after_s)
            if clock() + wait > ends:
                raise
        await asyncio.sleep(wait)
