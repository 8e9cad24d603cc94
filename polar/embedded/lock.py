"""The lock of a running `polar up` on its data folder.

It is a flock on DIR/up.lock that `up` acquires and all its children inherit. The lock is free exactly when the last of them has ended, so a
new `up` never runs beside children of a killed one. The file contains the process id of `up`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from topics.environment import private_files
from topics.types.errors import InputError

CHILDREN_END_S = 20.0
"""How long the children of a killed `up` may take to end: twice `parent_watch.GRACE_S`."""


def claim(data: Path, *, announce: Callable[[str], None]) -> int:
    """Lock the folder, which is created if it is missing; the lock is held until the last copy of the returned descriptor is closed.

    Waits for the children of an `up` that died. Raises InputError if an `up` runs.
    """
    try:
        private_files.make_folder(data)
    except OSError as error:
        raise InputError(
            "--data", str(data), f"the folder can't be made: {error.strerror}; choose another one"
        ) from None
    try:
        if warning := private_files.open_to_others(data):
            announce(f"warning: {warning}")
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
    """Whether no process of a `polar up` runs on the folder now."""
    try:
        lock = os.open(data / "up.lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        return _try(lock)
    finally:
        os.close(lock)


def _wait(lock: int, data: Path, announce: Callable[[str], None]) -> None:
    deadline = time.monotonic() + CHILDREN_END_S
    is_announced = False
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
                "--data", str(data), f"processes of an earlier `polar up` still run there after {CHILDREN_END_S:.0f} s"
            )
        if not is_announced:
            announce(f"waiting for processes of a killed `polar up` on {data} to end")
            is_announced = True
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
