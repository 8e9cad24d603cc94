"""Files that represent live processes: a process holds the lock (flock) of its file until the process ends, for whatever reason.

A killed process is recognised as dead without clean-up or clocks; a suspended one counts as live. Works across hosts if the file system
supports flock (NFS 4 does). The caller defines what a file and its text mean.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class LockedFile:
    """A locked file of this process."""

    def __init__(self, name: str, file: int) -> None:
        self.name = name
        """Unique among all such files, past ones included."""
        self._file = file

    def write(self, text: str) -> None:
        """Set the text: a few bytes, which readers see completely or not at all."""
        os.pwrite(self._file, text.encode(), 0)


@contextmanager
def locked_file(folder: Path, *, leave: bool = False) -> Iterator[LockedFile]:
    """Create and lock a new file in an existing folder. `leave`: don't remove it at the end; `living` will call `bury` for it."""
    path, file = _make(folder)
    try:
        yield LockedFile(path.name, file)
    finally:
        if not leave:
            path.unlink(missing_ok=True)
        os.close(file)


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Try to lock the path: True if no other process has locked it; then none can until the context ends."""
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        yield _lock(file)
    finally:
        os.close(file)


def living(folder: Path, bury: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Names and texts of the files of live processes. For a dead process's file, calls `bury(name)` and removes it."""
    found: dict[str, str] = {}
    for path in folder.iterdir():
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # its process has just ended
        try:
            if _lock(file):
                bury(path.name)
                path.unlink(missing_ok=True)
            else:
                found[path.name] = path.read_text()
        except FileNotFoundError:
            continue
        finally:
            os.close(file)
    return found


def _make(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / uuid.uuid4().hex
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        # Until it is locked, the file looks like a dead process's and may be removed.
        if _lock(file) and path.exists():
            return path, file
        os.close(file)


def _lock(file: int) -> bool:
    """Try to lock; False if another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
