"""An event loop in a thread of its own: synchronous code, and notebooks whose own loop is running, can call coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs from `__init__` to `stop` in a daemon thread, which doesn't keep the process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop and return its result. An interrupt of the caller (Ctrl-C) cancels the coroutine.

        Raises RuntimeError in a forked process, which doesn't have the thread.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("this was opened before the process was forked; open it again in this process")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """End the loop. The caller must have ended its coroutines before."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
