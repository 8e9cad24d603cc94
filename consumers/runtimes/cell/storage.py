"""Watches how much of a disk one session's files occupy. No file system in general has a quota for a folder.

A `StorageWatch` asks the file system twice a second for its used bytes and inodes: one system call. Only when these have grown by a
noticeable part of what the session has left, it walks the session's folder (`measure`). A growth that others' removals hide is found by a
walk every ten seconds, which an unchanged file system spares. So an idle session costs no walk, and a session that fills the disk is
found at the next look.

The folder belongs to a program that may want to mislead the walk or make it endless. Therefore:

- Links aren't followed, other file systems aren't entered, nothing but folders is opened, and a file with several names counts once.
- A walk ends as soon as the limit is exceeded. ENTRIES is a limit of its own, so a walk takes a few seconds at most, and a watch uses at
  most a fifth of a core.
- A walk holds at most `_OPEN_LEVELS` folders open, however deep the tree is.
- A removed file that a process holds open counts, if the session's processes are known. A removed file that is only mapped into memory, or
  is on its way through a socket, isn't found.
- If a part can't be counted, because it moves about deep inside, the session is charged for all growth of the file system instead.
  An unprivileged worker opens folders that their owner has closed (mode 000), but only if that decides whether the limit is exceeded.

Sessions may have larger limits than the disk has space. When less than the disk's reserve is free, a session is the cause if its files have
grown since its preparation (`Prepared`) by more than an equal share: what was free above the reserve, divided by the sessions on the disk.
Sessions that all keep within their shares can't use up the reserve, so either some session is the cause, or the host is.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from topics.environment import private_files

ENTRIES = 1_000_000
"""Files and folders that a session may have. A large repository with its dependencies has 300,000; ext4 makes 16 million for 256 GB."""
LOOK_S = 0.5
"""Between two looks at the file system: a fast disk takes about a gigabyte in this time."""

_LEAST_GROWTH = 64
"""A growth by less than this part of the limit starts no walk."""
_PART_LEFT = 4
"""A growth by this part of what is left starts a walk: what is left shrinks by a quarter, so a filler causes some ten walks."""
_REST_FACTOR = 4
"""A walk is followed by a pause of so many times its duration."""
_REGULAR_S = 10.0
"""Between regular walks: a growth that other removals hide doesn't endanger the host, as the disk doesn't fill."""
_REGULAR_FACTOR = 1000
"""Regular walks use at most a thousandth of a core."""
_WALKERS = 2
"""Walks at the same time in a process. They have threads of their own, so that no other work waits for a slow one."""
_RESERVE_BYTES = 256 * 1024 * 1024
_RESERVE_PART = 20
"""The reserve of a small disk is this part of it. The evaluations of sessions that filled the disk need it."""
_FULL_BYTES = 4 * 1024 * 1024
"""With less free space, the writes of programs fail."""
_PREPARED = "prepared.json"
_OPEN_LEVELS = 64
_BLOCK = 512
"""Unit of `st_blocks`, whatever the file system's own block is (stat(2))."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_USABLE = 0o500

_walkers = ThreadPoolExecutor(_WALKERS, thread_name_prefix="storage-walk")


@dataclass(frozen=True)
class Usage:
    """What files occupy on disk. `complete` False: some couldn't be counted."""

    bytes: int
    entries: int
    complete: bool = True

    def exceeds(self, limit: Usage) -> bool:
        return self.bytes > limit.bytes or self.entries > limit.entries


class Prepared(msgspec.Struct, frozen=True):
    """A session's folder and its disk before the agent's first program, in bytes."""

    used: int
    """Bytes of the session's files at that time."""
    free: int
    """Free space of the disk."""


def record_prepared(folder: Path) -> None:
    """Write `Prepared` beside the session's files, where no program sees it, unless it is there. Raises OSError."""
    if not (path := folder / _PREPARED).exists():
        found = Prepared(measure(str(folder), Usage(1 << 62, ENTRIES)).bytes, _free(str(folder)))
        private_files.replace(path, msgspec.json.encode(found))


def prepared(folder: Path) -> Prepared | None:
    """None before the agent's first program."""
    try:
        return msgspec.json.decode((folder / _PREPARED).read_bytes(), type=Prepared)
    except FileNotFoundError:
        return None


def is_full(folder: Path) -> bool:
    """Whether the disk has no space for what programs write."""
    return _free(str(folder)) < _FULL_BYTES


def reserve(folder: str) -> int:
    """Bytes of the disk that sessions should leave free."""
    found = os.statvfs(folder)
    return min(_RESERVE_BYTES, found.f_blocks * found.f_frsize // _RESERVE_PART)


def lacks_reserve(folder: str) -> bool:
    return _free(folder) < reserve(folder)


class StorageWatch:
    """Watches one session's folder. `walks`: how often it has walked the folder. `was_full`: at some look the disk was full."""

    def __init__(self, folder: Path, storage_mb: int, pids: Callable[[], Iterable[int]] = tuple) -> None:
        """`pids`: the session's processes at the moment, whose removed files count too. Raises OSError if there is no such folder."""
        self.walks = 0
        self.was_full = False
        self._folder = str(folder)
        self._prepared = prepared(folder)
        self._free_at_start = _free(self._folder)
        self._limit = Usage(storage_mb * 1024 * 1024, ENTRIES)
        self._pids = pids
        self._used = _used(self._folder)
        """Of the file system, at the last walk or at the start."""
        self._usage: Usage | None = None
        """Of the session, at the last walk."""
        self._rests_until = 0.0
        self._regular_at = time.monotonic() + _REGULAR_S

    async def exceeded(self) -> str:
        """Wait until the session has exceeded its limit; one sentence that says by what. Raises OSError if the folder is removed."""
        while True:
            if self._is_due() and (problem := await asyncio.get_running_loop().run_in_executor(_walkers, self.walk)):
                return problem
            await asyncio.sleep(LOOK_S)

    def walk(self) -> str:
        """Count the session's files now; one sentence if the limit is exceeded, otherwise an empty text."""
        started = time.monotonic()
        self.walks += 1
        used = _used(self._folder)
        usage = self._charged(self._count(reveal=False), used)
        if usage.exceeds(self._limit) and not usage.complete:
            usage = self._charged(self._count(reveal=True), used)
        self._usage, self._used = usage, used
        now = time.monotonic()
        self._rests_until = now + _REST_FACTOR * (now - started)
        self._regular_at = now + max(_REGULAR_S, _REGULAR_FACTOR * (now - started))
        if usage.bytes > self._limit.bytes:
            limit_mb = self._limit.bytes >> 20
            return f"The session's files occupy more than {limit_mb} MB, its limit (storage_mb)."
        if usage.entries > self._limit.entries:
            return f"The session has more than {self._limit.entries} files and folders."
        return self._short_disk(usage)

    def _short_disk(self, usage: Usage) -> str:
        """One sentence if the disk lacks its reserve and this session is the cause."""
        if self._prepared is None or not lacks_reserve(self._folder):
            return ""
        entries = os.scandir(os.path.dirname(self._folder))  # noqa: PTH120 - a text
        sessions = sum(1 for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        free = max(self._prepared.free, self._free_at_start)
        share = max(0, free - reserve(self._folder)) // max(1, sessions)
        if (grown := usage.bytes - self._prepared.used) <= share:
            return ""
        return (
            f"The session's files have grown by {grown >> 20} MB, its share is {share >> 20} MB, "
            "and the worker's disk is almost full."
        )

    def _is_due(self) -> bool:
        now = time.monotonic()
        self.was_full = self.was_full or _free(self._folder) < _FULL_BYTES
        if now < self._rests_until:
            return False
        used = _used(self._folder)
        known = self._usage or self._limit  # unknown: as if nothing were left
        return (
            _is_noticeable(used.bytes - self._used.bytes, self._limit.bytes, known.bytes)
            or _is_noticeable(used.entries - self._used.entries, self._limit.entries, known.entries)
            or (now >= self._regular_at and used != self._used)
            or (self._prepared is not None and used != self._used and lacks_reserve(self._folder))
        )

    def _count(self, *, reveal: bool) -> Usage:
        usage = measure(self._folder, self._limit, reveal=reveal)
        removed = _removed_but_open(self._pids(), os.stat(self._folder).st_dev)  # noqa: PTH116 - as below
        return replace(usage, bytes=usage.bytes + removed.bytes, entries=usage.entries + removed.entries)

    def _charged(self, usage: Usage, used: Usage) -> Usage:
        """`usage`, or if it isn't complete at least the last usage and all growth of the file system since."""
        if usage.complete:
            return usage
        last = self._usage or Usage(0, 0)
        return Usage(
            max(usage.bytes, last.bytes + used.bytes - self._used.bytes),
            max(usage.entries, last.entries + used.entries - self._used.entries),
            complete=False,
        )


def measure(folder: str, limit: Usage, *, reveal: bool = False) -> Usage:
    """What lies below `folder`, counted until it exceeds `limit`. With `reveal`, folders of ours without read or search permission are
    opened by permission to their owner while they are counted. Raises OSError if `folder` can't be opened."""
    walk = _Walk(os.open(folder, _DIRECTORY), limit, reveal=reveal)
    return walk.run()


@dataclass
class _Level:
    """A folder on the way down. `fd` None: closed, because too many are open. `names`: folders in it that are not counted yet."""

    fd: int | None
    inode: int
    names: list[str]
    mode: int | None
    """The permissions to restore."""


class _Walk:
    """One walk, depth first. All paths are single names relative to an open folder, so moved folders and links can't lead it away."""

    def __init__(self, top: int, limit: Usage, *, reveal: bool) -> None:
        self._top = top
        self._device = os.fstat(top).st_dev
        self._limit = limit
        self._reveal = reveal
        self._bytes = 0
        self._entries = 0
        self._complete = True
        self._counted: set[int] = set()
        """Inodes of files with several names."""

    def run(self) -> Usage:
        levels: list[_Level] = []
        try:
            levels.append(self._level(self._top, None))
            while levels and not self._is_over():
                level = levels[-1]
                if not level.names:
                    self._leave(levels)
                    continue
                assert level.fd is not None
                if (opened := self._open(level.names.pop(), level.fd)) is None:
                    continue
                if len(levels) >= _OPEN_LEVELS:
                    os.close(level.fd)
                    level.fd = None
                levels.append(self._level(*opened))
        finally:
            for level in levels:
                _close(level)
        return Usage(self._bytes, self._entries, self._complete)

    def _is_over(self) -> bool:
        return self._bytes > self._limit.bytes or self._entries > self._limit.entries

    def _leave(self, levels: list[_Level]) -> None:
        """Go back up. If the folder was moved meanwhile, go on at the deepest folder that is still open, and miss what lies between."""
        done = levels.pop()
        if levels and levels[-1].fd is None and done.fd is not None:
            levels[-1].fd = _parent(done.fd, levels[-1].inode)
        _close(done)
        while levels and levels[-1].fd is None:
            self._complete = False
            levels.pop()

    def _open(self, name: str, parent: int) -> tuple[int, int | None] | None:
        """The folder `name`, and the permissions to restore; None if it can't be counted, or isn't there any more."""
        try:
            return os.open(name, _DIRECTORY, dir_fd=parent), None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            if self._reveal and (opened := _open_closed(name, parent)):
                return opened
        except OSError:
            pass
        self._complete = False
        return None

    def _level(self, fd: int, mode: int | None) -> _Level:
        """Count the entries of an open folder."""
        found = os.fstat(fd)
        if self._reveal and mode is None and found.st_mode & _USABLE != _USABLE:
            mode = _usable(fd, found.st_mode)
        level = _Level(fd, found.st_ino, [], mode)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._count(entry, level.names)
                    if self._is_over():
                        break
        except OSError:
            self._complete = False
        return level

    def _count(self, entry: os.DirEntry[str], folders: list[str]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError:
            self._complete = False
            return
        if found.st_dev != self._device:
            return
        if stat.S_ISDIR(found.st_mode):
            folders.append(entry.name)
        elif found.st_nlink > 1:
            if found.st_ino in self._counted:
                return
            self._counted.add(found.st_ino)
        self._entries += 1
        self._bytes += found.st_blocks * _BLOCK


def _open_closed(name: str, parent: int) -> tuple[int, int] | None:
    """Open a folder of ours that has no read permission."""
    try:
        place = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    except OSError:
        return None
    path = f"/proc/self/fd/{place}"  # chmod takes no O_PATH descriptor itself
    try:
        mode = _usable(path, os.fstat(place).st_mode)
        return None if mode is None else (os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode)
    except OSError:
        return None
    finally:
        os.close(place)


def _usable(folder: int | str, mode: int) -> int | None:
    """Permit its owner to read and search `folder`. The permissions to restore, None if it isn't ours."""
    permissions = stat.S_IMODE(mode)
    try:
        os.chmod(folder, permissions | _USABLE)  # noqa: PTH101 - a descriptor
    except OSError:
        return None
    return permissions


def _parent(fd: int, inode: int) -> int | None:
    """The folder above, if it is the one with this inode."""
    try:
        above = os.open("..", _DIRECTORY, dir_fd=fd)
    except OSError:
        return None
    if os.fstat(above).st_ino == inode:
        return above
    os.close(above)
    return None


def _close(level: _Level) -> None:
    if level.fd is None:
        return
    if level.mode is not None:
        with suppress(OSError):
            os.fchmod(level.fd, level.mode)
    os.close(level.fd)


def _removed_but_open(pids: Iterable[int], device: int) -> Usage:
    """Files of `device` without a name that the processes hold open. Looks at ENTRIES descriptors at most."""
    sizes: dict[int, int] = {}
    looks = 0
    for pid in pids:
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - names, not paths
        except OSError:  # it has ended
            continue
        for descriptor in descriptors:
            if (looks := looks + 1) > ENTRIES:
                break
            try:
                found = os.stat(f"/proc/{pid}/fd/{descriptor}")  # noqa: PTH116 - the file, whatever its former path is now
            except OSError:
                continue
            if found.st_nlink == 0 and found.st_dev == device and stat.S_ISREG(found.st_mode):
                sizes[found.st_ino] = found.st_blocks * _BLOCK
    return Usage(sum(sizes.values()), len(sizes))


def _used(folder: str) -> Usage:
    """Bytes and inodes that are used in the file system of `folder`. Some file systems (btrfs) count no inodes and show 0."""
    found = os.statvfs(folder)
    return Usage((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_files - found.f_ffree)


def _free(folder: str) -> int:
    """Bytes that a user without privileges can still write."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _is_noticeable(growth: int, limit: int, used: int) -> bool:
    return growth >= max(limit // _LEAST_GROWTH, (limit - used) // _PART_LEFT)
