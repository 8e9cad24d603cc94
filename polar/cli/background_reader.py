"""Reads slow input, such as lines of a pipe, in a thread, so that the event loop goes on. Nobody waits for the thread to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import TypeVar

AHEAD = 64
"""Items read in advance."""

T = TypeVar("T")


async def read_in_background(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """Yield the items, and raise the exception that ends them."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)

    def put(entry: tuple[T] | Exception | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, entry)

    def read() -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody reads on
            try:
                for item in items:
                    room.acquire()
                    put((item,))
            except Exception as error:
                put(error)
            else:
                put(None)

    # Not the loop's executor: at Ctrl-C the loop would wait for the pipe's next line.
    threading.Thread(target=read, name="background reader", daemon=True).start()
    while (entry := await queue.get()) is not None:
        if isinstance(entry, Exception):
            raise entry
        room.release()
        yield entry[0]
