"""What comes slowly, such as lines of a pipe, without holding up the loop: a thread waits for it, and nobody waits for the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from typing import Generic, TypeVar

AHEAD = 64
"""Items read before they are asked for."""

T = TypeVar("T")


class _Over(Generic[T]):
    """Stands behind the last item."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


async def trickled(items: Iterable[T]) -> AsyncGenerator[T, None]:
    """The same items, and the same exception at their end."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[T | _Over[T]] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)

    def hand_on() -> None:
        over: _Over[T] = _Over(None)
        try:
            for item in items:
                room.acquire()
                loop.call_soon_threadsafe(queue.put_nowait, item)
        except Exception as error:
            over = _Over(error)
        loop.call_soon_threadsafe(queue.put_nowait, over)

    def run() -> None:
        try:
            hand_on()
        except RuntimeError:
            # The loop has ended: nobody reads on.
            return

    # Not the loop's executor: at Ctrl-C the loop would wait until the pipe's next line comes.
    threading.Thread(target=run, name="trickle", daemon=True).start()
    while True:
        item = await queue.get()
        if isinstance(item, _Over):
            if item.error is not None:
                raise item.error
            return
        room.release()
        yield item
