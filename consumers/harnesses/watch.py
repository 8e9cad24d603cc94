"""Notices of changes in an installed tree: the kernel's (inotify), or by a look at every file where it gives none.

A notice is only a hint: something was touched, and a full verification must follow. With the kernel's notices a check of any tree takes
2 µs; a look at the 14,000 files of pi takes 40 ms of CPU. Notices miss writes through a mapping, until it is closed, and writes
through a hard link that lies outside of the tree. Both need the worker's user or root; the next full verification finds them.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_EVENT = struct.Struct("iIII")
"""struct inotify_event of inotify(7): watch, mask, cookie, length of the name that follows."""
_READ = 65536
# <sys/inotify.h>
_MODIFY, _ATTRIB, _CLOSE_WRITE = 0x2, 0x4, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_CHANGES = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_ONLYDIR = 0x0100_0000
_NO_WATCH = -1
"""The kernel's queue was full: notices are lost."""


class Watch:
    """Watches the tree at `folder`, which exists, from now on. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._source = Notices.of(folder) or Looks(folder)
        self._lock = threading.Lock()
        self._touched: str | None = None

    def changed(self) -> str | None:
        """A path that was touched since the start, the same one at every call; None if none was."""
        with self._lock:
            if self._touched is None:
                self._touched = self._source.first()
            return self._touched


class Notices:
    """The kernel's notices about each folder of a tree: an inotify instance."""

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._queue: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    @classmethod
    def of(cls, folder: Path) -> Notices | None:
        """None where the kernel has no inotify, or no more watches for this user."""
        notices = cls()
        watched = notices._queue >= 0 and all(notices._add(parent) for parent, _, _ in os.walk(folder))
        return notices if watched else None

    def __del__(self) -> None:
        if self._queue >= 0:
            os.close(self._queue)

    def first(self) -> str | None:
        """The path of the first notice; all others are dropped."""
        path = None
        while True:
            try:
                events = os.read(self._queue, _READ)
            except BlockingIOError:
                return path
            if path is None:
                watch, _, _, length = _EVENT.unpack_from(events)
                name = os.fsdecode(events[_EVENT.size : _EVENT.size + length].rstrip(b"\0"))
                parent = "one of many files" if watch == _NO_WATCH else self._folders[watch]
                path = f"{parent}/{name}" if name else parent

    def _add(self, folder: str) -> bool:
        watch = _LIBC.inotify_add_watch(self._queue, os.fsencode(folder), _CHANGES | _ONLYDIR)
        self._folders[watch] = folder
        return bool(watch >= 0)


class Looks:
    """Compares the status of each file and folder of a tree with what it was at the start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = self._look()

    def first(self) -> str | None:
        """The first path that differs."""
        before, now = self._before, self._look()
        return next((path for path in before | now if before.get(path) != now.get(path)), None)

    def _look(self) -> dict[str, tuple[int, ...]]:
        """By path: mode, inode, size and times. Any change of a file changes one of them."""
        found: dict[str, tuple[int, ...]] = {}
        for parent, folders, files in os.walk(self._folder):
            for path in (parent, *(f"{parent}/{name}" for name in (*folders, *files))):
                try:
                    status = os.lstat(path)
                except FileNotFoundError:
                    continue
                found[path] = (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return found
