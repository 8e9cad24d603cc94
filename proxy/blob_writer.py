"""Stores bytes that calls bring before the calls' records name them: media of prompts, and values to replay.

Harnesses wait for it, and the store may hang. So it has threads of its own, a deadline and a limit on memory, and nothing else of the
proxy waits. A store that hangs costs one call its bytes and STORE_S seconds, and the calls of the next PAUSE_S seconds their bytes alone;
then one value is tried again. A store that is only slow gets no pause: one call can bring more than it takes in STORE_S, and that must
cost no other session its bytes. Invariant: a reference is returned only for what is in the store.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import structlog

from topics.environment.blobs import BlobStore

STORE_S = 10.0
"""For all that one call brings; a store that finished no value for so long hangs."""
PAUSE_S = 30.0
"""After the store hung: no call waits for it, except the one that tries it again at the end."""
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
        """`no_store`: there is none; `busy`: PENDING_BYTES are pending; `unstored`: the store failed, was too slow just now, or hung a
        short time ago."""


@dataclass(eq=False)
class Batch:
    """The values that one call stores, with their deadline, which starts now. Needs a running event loop."""

    until: float = field(default_factory=lambda: asyncio.get_running_loop().time() + STORE_S)
    """When the call goes on without what isn't stored, by the loop's clock."""
    trial: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the value that tries the store after a pause: the batch's other values wait for its outcome."""


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
        self._stored_at = -math.inf
        """When the store last finished a value, also one that no call waited for any more, by `time.monotonic()`."""
        self._next_try: float | None = None
        """When a value may be tried again, by `time.monotonic()`; None: the store isn't known to hang."""

    @property
    def has_store(self) -> bool:
        return self._blobs is not None

    def stop(self) -> None:
        """Give up what waits for a thread."""
        for threads in (self._storing, self._computing):
            threads.shutdown(wait=False, cancel_futures=True)

    async def computed(self, work: Callable[[], T]) -> T:
        """The result of work that takes time but waits for nothing."""
        return await asyncio.wrap_future(self._computing.submit(work))

    async def put(self, size: int, data: Callable[[], bytes], batch: Batch) -> str:
        """The reference to `data()`, which is called in a thread and has about `size` bytes. Raises UnstoredError, at `batch.until` at the
        latest, and what `data` raises."""
        if self._blobs is None:
            raise UnstoredError("no_store")
        async with batch.trial:
            if self._next_try is not None:
                return await self._put(self._blobs, size, data, batch.until)
        return await self._put(self._blobs, size, data, batch.until)

    async def _put(self, blobs: BlobStore, size: int, data: Callable[[], bytes], until: float) -> str:
        if self.pending_bytes + size > PENDING_BYTES:
            raise UnstoredError("busy")
        self._require_working()
        with self._lock:
            self.pending_bytes += size
        work = self._storing.submit(self._write, blobs, data)
        # Not when the wait ends: after a timeout the thread still holds the value.
        work.add_done_callback(lambda _: self._release(size))
        try:
            async with asyncio.timeout_at(until):
                ref = await asyncio.wrap_future(work)
        except OSError as error:  # TimeoutError is one
            # No call waits for a store that refuses, and a store that has just finished another value is only slow.
            hangs = isinstance(error, TimeoutError) and time.monotonic() - self._stored_at >= STORE_S
            self._next_try = time.monotonic() + PAUSE_S if hangs else None
            self._warn(blobs.place, str(error) or f"what a call brought took longer than {STORE_S:g} s")
            raise UnstoredError("unstored") from None
        self._next_try = None
        return ref

    def _write(self, blobs: BlobStore, data: Callable[[], bytes]) -> str:
        ref = blobs.put(data()).ref
        self._stored_at = time.monotonic()
        return ref

    def _require_working(self) -> None:
        """Raises UnstoredError while the store hangs, except for the first value after the pause, which tries it."""
        if self._next_try is None:
            return
        if time.monotonic() < self._next_try:
            raise UnstoredError("unstored")
        self._next_try = time.monotonic() + PAUSE_S

    def _warn(self, store: str, reason: str) -> None:
        if time.monotonic() >= self._warn_after:
            self._warn_after = time.monotonic() + WARN_S
            log.warning("the blob store fails", action="blob_not_stored", store=store, reason=reason)

    def _release(self, size: int) -> None:
        with self._lock:
            self.pending_bytes -= size
