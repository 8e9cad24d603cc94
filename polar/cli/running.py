"""How commands run their event loop: to an end, or until they are told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable


def serve(main: Callable[[asyncio.Event], Awaitable[None]], hurry: asyncio.Event | None = None) -> None:
    """Run `main` to its end; SIGINT, SIGTERM or SIGHUP sets the event that it watches, the same again ends the process at once.

    With `hurry` a second one sets that, and only the next of its kind ends the process.
    """
    asyncio.run(_serve(main, hurry))


async def _serve(main: Callable[[asyncio.Event], Awaitable[None]], hurry: asyncio.Event | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def told(number: signal.Signals) -> None:
        if hurry is None or stop.is_set():
            loop.remove_signal_handler(number)
        if hurry is not None and stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told, number)
    await main(stop)
