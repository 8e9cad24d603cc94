"""The blob store as stages use it: they wait while it doesn't answer, as an evaluation waits for room on a full disk.

Its calls have threads of their own, so a store that hangs leaves asyncio's default ones to the sessions that don't need it.

The coordinator ends a stage 60 s after its budget (`GRACE_MS`), so whatever is outside of the budget waits for WAIT_S at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import structlog

from topics.environment.blobs import BlobStore, BlobStoreError
from topics.types.errors import NotReadyError
from topics.types.uploads import UploadedFiles

WAIT_S = 15.0
"""Limit for the body of a task, for uploads in addition to a budget, and for artifacts once the budget is used up: three of them, and 15 s
to report, are the coordinator's grace."""
KEEP_S = 300.0
"""Limit for a stage's artifacts while its budget lasts; its slot is taken meanwhile."""
AGAIN_S = 2.0
THREADS = 32
"""Calls at once, twice the slots of a worker with default settings. Further calls wait, and a wait that ends takes its call back."""

log = structlog.get_logger()
Result = TypeVar("Result")
_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs")
"""The interpreter joins them when it exits; each request to a bucket has its own deadline."""


async def in_thread(call: Callable[[], Result]) -> Result:
    """The result of `call`, one use of the blob store, which blocks."""
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def patiently(call: Callable[[], Result], within_s: float = WAIT_S) -> Result:
    """The result of `call`, in a thread, called again while the store doesn't answer.

    Raises BlobStoreError after `within_s`; a request that is under way then ends by its own deadline.
    """
    end = time.monotonic() + within_s
    reason = BlobStoreError(f"the blob store (POLAR_BLOBS) has not answered within {within_s:.0f} s")
    try:
        async with asyncio.timeout(max(within_s, 0)):
            while True:
                try:
                    return await in_thread(call)
                except BlobStoreError as error:
                    reason = error
                    if time.monotonic() + AGAIN_S > end:
                        raise
                    log.warning("a stage waits for the blob store", action="blobs.unreachable", why=str(error))
                    await asyncio.sleep(AGAIN_S)
    except TimeoutError:
        raise reason from None


async def fetch(blobs: BlobStore, uploads: Sequence[UploadedFiles], within_s: float) -> None:
    """Bring uploads to this host before they are used. So a store that doesn't answer can't make their use fail or take too long, which
    would be a verdict on the agent. Missing and damaged content is left to the use, which names the field.

    Raises NotReadyError if the store hasn't answered within `within_s`, or the copy can't be written.
    """
    end = time.monotonic() + within_s
    for ref in dict.fromkeys(upload.content.ref for upload in uploads if upload.content is not None):
        try:
            await patiently(partial(blobs.fetch, ref), end - time.monotonic())
        except (FileNotFoundError, ValueError):
            continue
        except OSError as error:
            raise NotReadyError(f"{ref} can't be brought to this worker: {error}") from error


async def fetch_for_evaluation(blobs: BlobStore, uploads: Sequence[UploadedFiles], budget_s: float) -> None:
    """As `fetch`. Also raises NotReadyError if the content came so late that too little of this try's time remains: the next try has it."""
    began = time.monotonic()
    await fetch(blobs, uploads, budget_s)
    if (took_s := time.monotonic() - began) > WAIT_S:
        raise NotReadyError(
            f"uploads came from {blobs.place} (POLAR_BLOBS) only after {took_s:.0f} s; the next try has them"
        )
