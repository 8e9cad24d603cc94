"""An event loop in a thread of its own: synchronous code, and notebooks whose own loop is running, can call coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

END_S = 30.0
"""For an interrupted coroutine to end, such as the end of a pause of the fleet: Kafka's acknowledgements take milliseconds."""


class LoopThread:
    """Runs from `__init__` to `stop` in a daemon thread, which doesn't keep the process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls: set[Future[Any]] = set()
        """In progress."""
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop and return its result.

        An interrupt of the caller (Ctrl-C) cancels the coroutine and waits until it has ended, END_S at most: what the caller does next may
        take away what the coroutine's end needs. Raises CancelledError of `concurrent.futures` after `interrupt`.

        Raises RuntimeError in a forked process, which doesn't have the thread.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("this was opened before the process was forked; open it again in this process")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls.add(future)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                asyncio.run_coroutine_threadsafe(_ended(coroutine), self._loop).result()
            raise
        finally:
            self._calls.discard(future)

    def interrupt(self) -> None:
        """Cancel the calls in progress, from another thread."""
        for future in [*self._calls]:
            future.cancel()

    def stop(self) -> None:
        """End the loop. The caller must have ended its coroutines before."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _ended(coroutine: Coroutine[Any, Any, Any]) -> None:
    if tasks := [task for task in asyncio.all_tasks() if task.get_coro() is coroutine]:
        await asyncio.wait(tasks, timeout=END_S)
