"""The blob store as stages use it: they wait while it doesn't answer, as an evaluation waits for room on a full disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from topics.environment.blobs import BlobStore, BlobStoreError
from topics.types.errors import NotReadyError
from topics.types.task import PrepareAction

WAIT_S = 300.0
"""Limit for artifacts and for the body of a task, whose stage has no budget for them: a server's restart with a slow recovery."""
AGAIN_S = 2.0

log = structlog.get_logger()
Result = TypeVar("Result")


async def patiently(call: Callable[[], Result], within_s: float = WAIT_S) -> Result:
    """The result of `call`, in a thread, called again while the store doesn't answer. Raises BlobStoreError once `within_s` is over."""
    end = time.monotonic() + within_s
    while True:
        try:
            return await asyncio.to_thread(call)
        except BlobStoreError as error:
            if time.monotonic() + AGAIN_S > end:
                raise
            log.warning("a stage waits for the blob store", action="blobs.unreachable", why=str(error))
            await asyncio.sleep(AGAIN_S)


async def fetch(blobs: BlobStore, actions: Sequence[PrepareAction], within_s: float) -> None:
    """Bring what the actions upload to this host. So a store that doesn't answer can't make a preparation fail or take too long, which
    would be a verdict on the agent. Missing and damaged content is left to the preparation, which names the action.

    Raises NotReadyError if the store hasn't answered within `within_s`, or the copy can't be written.
    """
    end = time.monotonic() + within_s
    for ref in dict.fromkeys(action.content.ref for action in actions if action.content is not None):
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.monotonic()):
                await patiently(partial(blobs.fetch, ref), end - time.monotonic())
        except (FileNotFoundError, ValueError):
            continue
        except TimeoutError:
            raise NotReadyError(f"{ref} didn't arrive from {blobs.place} (POLAR_BLOBS) within {within_s:g} s") from None
        except OSError as error:
            raise NotReadyError(f"{ref} can't be brought to this worker: {error}") from error
