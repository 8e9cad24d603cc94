"""How commands run their event loop: to an end, or until they are told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable


def serve(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `main` to its end; SIGINT, SIGTERM or SIGHUP sets the event that it watches, the same again ends the process at once."""
    asyncio.run(_serve(main))


async def _serve(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def told(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, told, number)
    await main(stop)
