"""Waiting for the first of several ends: work, stop events and background tasks.

Invariant: when `first_done` returns or raises, no task that it started still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias

Contender: TypeAlias = "Coroutine[Any, Any, Any] | asyncio.Event | asyncio.Future[Any]"


async def first_done(*contenders: Contender, timeout_s: float | None = None) -> dict[Contender, Any]:
    """Wait until a coroutine ends, an event is set or a future is done; return the results by contender, empty after `timeout_s`.

    Coroutines and waits for events run in tasks of this call, which are cancelled and awaited at its end. A future stays its owner's and
    is never cancelled; one that its owner has cancelled raises CancelledError here. Raises what the first failed contender raised, in the
    order of the arguments; what a cancelled coroutine raises on its way out is dropped.
    """
    waits: dict[Contender, asyncio.Future[Any]] = {contender: _wait_for(contender) for contender in contenders}
    tasks = [wait for contender, wait in waits.items() if wait is not contender]
    try:
        await asyncio.wait(waits.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return {contender: wait.result() for contender, wait in waits.items() if wait.done()}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _wait_for(contender: Contender) -> asyncio.Future[Any]:
    if isinstance(contender, asyncio.Future):
        return contender
    if isinstance(contender, asyncio.Event):
        return asyncio.create_task(contender.wait(), name="wait-for-event")
    return asyncio.create_task(contender, name=getattr(contender, "__qualname__", None))
