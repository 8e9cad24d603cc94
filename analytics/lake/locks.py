"""Files that stand for living processes: whoever made one holds its lock (flock) until it ends, however it ends.

So a process that was killed needs no clean-up and no clock to be known as dead, and one that was only stopped stays alive. Works among
hosts where the file system carries flock (local ones, NFS 4). What a file's presence and text mean is the caller's.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Held:
    """A file of ours: it lives as long as this process, or until released."""

    def __init__(self, name: str, file: int) -> None:
        self.name = name
        """Unique among all files ever held."""
        self._file = file

    def write(self, text: str) -> None:
        """Say something in it; a few bytes, seen whole."""
        os.pwrite(self._file, text.encode(), 0)


@contextmanager
def held(folder: Path, *, leave: bool = False) -> Iterator[Held]:
    """Make a new file in the folder, which must be there, and hold it; `leave` it behind for whoever buries it."""
    path, file = _make(folder)
    try:
        yield Held(path.name, file)
    finally:
        if not leave:
            path.unlink(missing_ok=True)
        os.close(file)


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether no other process is in here with this path; if so, none enters until we leave."""
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        yield _lock(file)
    finally:
        os.close(file)


def living(folder: Path, bury: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Names of the files whose holders live, with their text; a dead one's is given to `bury`, then removed."""
    found: dict[str, str] = {}
    for path in folder.iterdir():
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # its holder ended just now
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
        # Until the lock is ours the file looks like a dead one's, and may be removed.
        if _lock(file) and path.exists():
            return path, file
        os.close(file)


def _lock(file: int) -> bool:
    """False where another holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
