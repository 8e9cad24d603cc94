"""An event loop in a thread of its own, so that plain code, and a notebook whose own loop runs already, can call coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs from `__init__` to `stop`; the thread is a daemon, and so keeps no process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await it there. Interrupted here (Ctrl-C), it is cancelled there.

        Raises RuntimeError in a process that was forked since: it has no such thread.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("this was opened in another process, of which this one is a fork: open one here")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """End the loop; what still runs there is the caller's fault."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
