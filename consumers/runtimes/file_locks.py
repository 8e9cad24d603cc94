"""Locks that processes of one host share, waited for without a thread, so that a waiting task can be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import filelock

FIRST_S, LONGEST_S = 0.02, 0.5
"""Pauses between two looks at a lock that somebody else holds: each is twice the one before it."""


def lock(file: Path) -> filelock.BaseFileLock:
    """A lock that ends with this process. Any thread may release it."""
    return filelock.FileLock(file, mode=0o600, thread_local=False)


@asynccontextmanager
async def held(file: Path) -> AsyncIterator[None]:
    """Hold a lock against other processes, and against other tasks of this one."""
    mine = lock(file)
    pause = FIRST_S
    while True:
        try:
            mine.acquire(timeout=0)
            break
        except filelock.Timeout:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_S)
    try:
        yield
    finally:
        mine.release()
