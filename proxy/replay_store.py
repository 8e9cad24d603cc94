"""Stores what engines sent for trainers to replay, before the call's record names it.

Invariant: a record never names a blob that isn't in the store. A value that can't be stored costs the call nothing but the value: the
record has the reason, and it is counted. Converting and storing block, so they have threads of their own, within a deadline and a limit
on memory.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import structlog
from msgspec.structs import replace

from proxy.chat import Answer, ReplayValue
from proxy.metrics import ProxyMetrics
from topics.environment.blobs import BlobStore
from topics.types.replay import ReplayError

STORE_S = 10.0
"""For one value: harnesses wait for it."""
PENDING_BYTES = 256 * 1024 * 1024
"""Limit of `pending_bytes`: a value beyond it is given up."""
THREADS = 4

log = structlog.get_logger(__name__)


class ReplayStore:
    """The blob store of a proxy whose engines capture something."""

    def __init__(self, blobs: BlobStore, metrics: ProxyMetrics) -> None:
        self._blobs = blobs
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="replay")
        self.pending_bytes = 0
        """Size of the values that wait for a thread or the store."""
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Give up what waits for a thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def stored(self, call_id: str, answer: Answer) -> Answer:
        """The answer with references to what it brought, or the reasons why there are none. Raises nothing of its own."""
        refs = await asyncio.gather(*(self._ref(call_id, value) for value in answer.replay))
        lost = answer.uncaptured | {
            value.field: reason for value, (ref, reason) in zip(answer.replay, refs, strict=True) if ref is None
        }
        for field, reason in lost.items():
            self._metrics.uncaptured.labels(field, reason).inc()
        stored = {value.field: ref for value, (ref, _) in zip(answer.replay, refs, strict=True) if ref is not None}
        return replace(answer, replay=(), stored=stored, uncaptured=lost)

    async def _ref(self, call_id: str, value: ReplayValue) -> tuple[str | None, str]:
        """The reference, or the reason for having none."""
        if self.pending_bytes + value.size > PENDING_BYTES:
            return None, "busy"
        with self._lock:
            self.pending_bytes += value.size
        work = self._threads.submit(lambda: self._blobs.put(value.encode()).ref)
        # Not when the wait ends: after a timeout the thread still holds the value.
        work.add_done_callback(lambda _: self._release(value.size))
        try:
            async with asyncio.timeout(STORE_S):
                return await asyncio.wrap_future(work), ""
        except TimeoutError:
            reason, why = "unstored", f"{self._blobs.place} has not answered within {STORE_S:.0f} s"
        except OSError as error:
            reason, why = "unstored", str(error)
        except ReplayError as error:
            reason, why = "malformed", str(error)
        log.warning(
            "a value was not captured", action="uncaptured", call_id=call_id, field=value.field, reason=reason, why=why
        )
        return None, reason

    def _release(self, size: int) -> None:
        with self._lock:
            self.pending_bytes -= size
