"""The lock that says a `polar up` runs on a data folder.

A flock on DIR/up.lock that `up` takes and all its parts inherit: it is free exactly when the last of them is gone, so that a new
`up` never meets the leftovers of one that was killed. The file holds the holder's process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from topics.types.errors import InputError

LEFTOVERS_S = 20.0
"""How long the parts of a killed `up` may take to leave: leash.GRACE_S, and room."""


def claim(data: Path, *, announce: Callable[[str], None]) -> int:
    """Lock the folder, made where it is missing; the file descriptor holds the lock until its last copy is closed.

    Waits for the parts of an `up` that died. Raises InputError where one runs.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = os.open(data / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError("--data", str(data), f"can't be written: {error.strerror}") from None
    try:
        _wait(lock, data, announce)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def is_free(data: Path) -> bool:
    """Whether nothing of a `polar up` runs on the folder, at this moment."""
    try:
        lock = os.open(data / "up.lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return _try(lock)
    finally:
        os.close(lock)


def _wait(lock: int, data: Path, announce: Callable[[str], None]) -> None:
    deadline = time.monotonic() + LEFTOVERS_S
    said = False
    while not _try(lock):
        holder = os.pread(lock, 32, 0).decode().strip()
        if holder.isdigit() and _lives(int(holder)):
            raise InputError(
                "--data",
                str(data),
                f"a `polar up` (process {holder}) already runs there; stop it, or choose another folder",
            )
        if time.monotonic() > deadline:
            raise InputError(
                "--data", str(data), f"parts of an earlier `polar up` still run there after {LEFTOVERS_S:.0f} s"
            )
        if not said:
            announce(f"waiting for the parts of a `polar up` that was killed to leave {data}")
            said = True
        time.sleep(0.1)


def _try(lock: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
