"""The budget for asking an engine again: overload, server errors and broken connections, within seconds that no harness notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from proxy.errors import EngineFault

PAUSES_S = (0.25, 1.0)
"""Before the second and the third try, where the engine names no time of its own."""
BUDGET_S = 30.0
"""From the first try on: a later one doesn't begin."""

T = TypeVar("T")


async def with_retries(attempt: Callable[[], Awaitable[T]]) -> T:
    """The first answer of up to three tries. Raises the last one's EngineFault."""
    clock = asyncio.get_running_loop().time
    ends = clock() + BUDGET_S
    for pause in PAUSES_S:
        try:
            return await attempt()
        except EngineFault as fault:
            wait = pause if fault.retry_after_s is None else float(fault.retry_after_s)
            if not fault.retryable or clock() + wait > ends:
                raise
        await asyncio.sleep(wait)
    return await attempt()
