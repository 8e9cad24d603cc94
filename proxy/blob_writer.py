"""Stores bytes that calls bring before the calls' records name them: media of prompts, and values to replay.

Harnesses wait for it, and the store may hang. So it has threads of its own, a deadline and a limit on memory, and nothing else of the
proxy waits. A store that hangs costs one call its bytes and STORE_S seconds, and the calls of the next PAUSE_S seconds their bytes alone;
then one value is tried again. Invariant: a reference is returned only for what is in the store.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import structlog

from topics.environment.blobs import BlobStore

STORE_S = 10.0
"""For all that one call brings."""
PAUSE_S = 30.0
"""After the store was too slow: no call waits for it, except the one that tries it again at the end."""
PENDING_BYTES = 256 * 1024 * 1024
"""Limit of `pending_bytes`: a value beyond it is given up."""
STORING = 4
"""Threads that wait for the store."""
COMPUTING = 2
"""Threads that compute alone, so a store that hangs leaves them free."""
WARN_S = 60.0
"""From one warning about the store to the next."""

log = structlog.get_logger(__name__)
T = TypeVar("T")


class UnstoredError(Exception):
    """A value isn't in the store."""

    def __init__(self, reason: Literal["no_store", "busy", "unstored"]) -> None:
        super().__init__(reason)
        self.reason = reason
        """`no_store`: there is none; `busy`: PENDING_BYTES are pending; `unstored`: the store failed, or was too slow just now or a short
        time ago."""


class BlobWriter:
    """The blob store of one proxy."""

    def __init__(self, blobs: BlobStore | None) -> None:
        """`blobs`: None if the proxy can't use a store."""
        self._blobs = blobs
        self._storing = ThreadPoolExecutor(STORING, thread_name_prefix="blobs")
        self._computing = ThreadPoolExecutor(COMPUTING, thread_name_prefix="digests")
        self.pending_bytes = 0
        """Size of the values that wait for a thread or the store."""
        self._lock = threading.Lock()
        self._warn_after = 0.0
        self._next_try: float | None = None
        """When a value may be tried again, by the loop's clock; None: the store isn't known to hang."""

    @property
    def has_store(self) -> bool:
        return self._blobs is not None

    def stop(self) -> None:
        """Give up what waits for a thread."""
        for threads in (self._storing, self._computing):
            threads.shutdown(wait=False, cancel_futures=True)

    def deadline(self) -> float:
        """When a call that begins to store now must go on, by the loop's clock."""
        return asyncio.get_running_loop().time() + STORE_S

    async def computed(self, work: Callable[[], T]) -> T:
        """The result of work that takes time but waits for nothing."""
        return await asyncio.wrap_future(self._computing.submit(work))

    async def put(self, size: int, data: Callable[[], bytes], until: float) -> str:
        """The reference to `data()`, which is called in a thread and has about `size` bytes. Raises UnstoredError, at `until` at the
        latest, and what `data` raises."""
        blobs = self._blobs
        if blobs is None:
            raise UnstoredError("no_store")
        if self.pending_bytes + size > PENDING_BYTES:
            raise UnstoredError("busy")
        self._try()
        with self._lock:
            self.pending_bytes += size
        work = self._storing.submit(lambda: blobs.put(data()).ref)
        # Not when the wait ends: after a timeout the thread still holds the value.
        work.add_done_callback(lambda _: self._release(size))
        try:
            async with asyncio.timeout_at(until):
                ref = await asyncio.wrap_future(work)
        except OSError as error:  # TimeoutError is one
            # A store that refuses answers: no call waits for it.
            self._next_try = _pause_end() if isinstance(error, TimeoutError) else None
            self._warn(blobs.place, str(error) or f"it has not answered within {STORE_S:g} s")
            raise UnstoredError("unstored") from None
        self._next_try = None
        return ref

    def _try(self) -> None:
        """Raises UnstoredError while the store hangs. After the pause one value is tried, and the others don't wait for it."""
        if self._next_try is None:
            return
        if asyncio.get_running_loop().time() < self._next_try:
            raise UnstoredError("unstored")
        self._next_try = _pause_end()

    def _warn(self, store: str, reason: str) -> None:
        if time.monotonic() >= self._warn_after:
            self._warn_after = time.monotonic() + WARN_S
            log.warning("the blob store fails", action="blob_not_stored", store=store, reason=reason)

    def _release(self, size: int) -> None:
        with self._lock:
            self.pending_bytes -= size


def _pause_end() -> float:
    return asyncio.get_running_loop().time() + PAUSE_S
