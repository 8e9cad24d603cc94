"""How tests wait for what happens outside of them: they look again and again, until a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

DEADLINE_S = 10.0
"""For what takes milliseconds on an idle machine."""
LOOK_S = 0.02
"""Between two looks; a look costs less."""


def until(look: Callable[[], T], deadline_s: float = DEADLINE_S, *, every_s: float = LOOK_S) -> T:
    """The first true result of `look`. Raises AssertionError with its last result after the deadline."""
    end = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {found!r}"
        time.sleep(every_s)
    return found


@overload
async def eventually(
    look: Callable[[], Awaitable[T]], deadline_s: float = DEADLINE_S, *, every_s: float = LOOK_S
) -> T: ...
@overload
async def eventually(look: Callable[[], T | None], deadline_s: float = DEADLINE_S, *, every_s: float = LOOK_S) -> T: ...
async def eventually(look: Callable[[], Any], deadline_s: float = DEADLINE_S, *, every_s: float = LOOK_S) -> Any:
    """As `until`, while this event loop goes on. The deadline interrupts a `look` that is a coroutine function."""
    found: Any = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                seen = look()
                found = await seen if inspect.isawaitable(seen) else seen
                if found:
                    return found
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:.0f} s: {found!r}") from None
