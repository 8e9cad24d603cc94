"""Files as an archive: equal trees give equal bytes, and an archive is unpacked into its target and nowhere else.

The format is tar, as GNU tar writes it, with folders and regular files alone. Packing sorts the names and keeps of the metadata only the
executable bit: no times, no owners. Nothing else can be packed or unpacked: a link would lead out of the sandbox, a device has no content.
Both directions stream, with one chunk in memory, and stop at BYTES_LIMIT and ENTRIES_LIMIT.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

BYTES_LIMIT = 1024**3
"""Most bytes of an archive: of a folder's files, and some 512 for each entry."""
ENTRIES_LIMIT = 100_000
"""Most files and folders of an archive."""
NAME_LIMIT = 2048
"""Most bytes of an entry's name. Linux allows 4,096 for a path, which begins with the sandbox's own folder."""

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_CHUNK = 1024 * 1024
_ENCODING = ("utf-8", "surrogateescape")
"""A name of Linux is any bytes."""
_BEFORE_S = 2.0
"""So much earlier than its arrival is a file's time: a change in the same second gets another time then. Python, which keeps whole seconds,
would otherwise go on with the module that it compiled before the change."""
_FOLDER_MODE, _PROGRAM_MODE, _FILE_MODE = 0o755, 0o755, 0o644
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)


class ArchiveError(Exception):
    """Files that can't be packed, or bytes that aren't an archive as `Tree.chunks` makes it."""


class Readable(Protocol):
    """A binary file that is read once."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Entry:
    """A file or a folder of a tree."""

    name: str
    """Relative to the tree's root."""
    size: int | None
    """Bytes of a file; None: a folder."""
    is_executable: bool = False
    version: tuple[int, int] = (0, 0)
    """Inode and time of the last change in ns: others mean that the file was changed or replaced."""

    @property
    def header(self) -> bytes:
        """What precedes the content in an archive."""
        header = tarfile.TarInfo(self.name)
        header.type = tarfile.DIRTYPE if self.size is None else tarfile.REGTYPE
        header.size = self.size or 0
        header.mode = _FOLDER_MODE if self.size is None else _PROGRAM_MODE if self.is_executable else _FILE_MODE
        return header.tobuf(tarfile.GNU_FORMAT, *_ENCODING)

    @property
    def packed_size(self) -> int:
        """Bytes of an archive that the entry needs."""
        name = len(os.fsencode(self.name)) + (self.size is None)  # a folder's name ends with a slash
        long_name = _BLOCK + _padded(name + 1) if name > tarfile.LENGTH_NAME else 0
        return long_name + _BLOCK + _padded(self.size or 0)


@dataclass(frozen=True)
class Tree:
    """A file, or all that is in a folder, as it was when it was listed."""

    root: Path
    entries: tuple[Entry, ...]
    """Sorted by name; a folder comes before its content."""

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return sum(entry.packed_size for entry in self.entries) + len(_END)

    def fingerprint(self) -> bytes:
        """Differs from another listing's if a file was added, removed, renamed, changed or replaced between them."""
        return hashlib.sha256(repr(self.entries).encode(*_ENCODING)).digest()

    def chunks(self) -> Iterator[bytes]:
        """The archive. Raises ArchiveError if a file has changed since the listing, or can't be read."""
        for entry in self.entries:
            yield entry.header
            if entry.size is not None:
                yield from _content(self.root / entry.name, entry.size)
        yield _END


def list_file(path: Path) -> Tree:
    """The tree of one file, which a link may name. Raises ArchiveError."""
    try:
        found = path.stat()
    except OSError as error:
        raise ArchiveError(f"can't be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ArchiveError("is no regular file")
    entry = _entry(path.name, path, found)
    _check_limits(1, entry.packed_size)
    return Tree(path.parent, (entry,))


def list_folder(path: Path) -> Tree:
    """The tree of a folder, which a link may name. Raises ArchiveError, also for a link or a special file anywhere in it."""
    entries: list[Entry] = []
    size = len(_END)
    folders = [""]
    while folders:
        prefix = folders.pop()
        try:
            with os.scandir(path / prefix) as found:
                for each in found:
                    entry = _entry(prefix + each.name, path / prefix / each.name, each.stat(follow_symlinks=False))
                    entries.append(entry)
                    size += entry.packed_size
                    _check_limits(len(entries), size)
                    if entry.size is None:
                        folders.append(f"{entry.name}/")
        except NotADirectoryError:
            raise ArchiveError("is no folder") from None
        except OSError as error:
            raise ArchiveError(f"{path / prefix} can't be read: {error.strerror}") from None
    return Tree(path, tuple(sorted(entries, key=lambda entry: os.fsencode(entry.name))))


def packed(entries: Iterable[tuple[Entry, Readable | None]]) -> Iterator[bytes]:
    """An archive of entries with the content of the files, which is read in order. Raises ArchiveError for too large an archive, and for
    content that ends too early."""
    count, size = 0, len(_END)
    for entry, content in entries:
        count, size = count + 1, size + entry.packed_size
        _check_limits(count, size)
        yield entry.header
        if content is None or entry.size is None:
            continue
        remaining = entry.size
        while remaining:
            chunk = _exactly(content, min(remaining, _CHUNK))
            remaining -= len(chunk)
            yield chunk
        yield bytes(_padded(entry.size) - entry.size)
    yield _END


def unpack_file(archive: Readable, target: Path) -> None:
    """Write the only file of an archive to `target`, which is replaced. No link there is followed. Raises ArchiveError, OSError."""
    headers = _headers(archive)
    header = next(headers, None)
    if header is None or header.isdir():
        raise ArchiveError("holds no file, or a folder")
    _write(archive, header, target)
    if next(headers, None) is not None:
        raise ArchiveError("holds more than one file")


def unpack_folder(archive: Readable, target: Path) -> None:
    """Unpack into the folder `target`, which is made if it is missing; what lies beside stays. No link there is followed.

    Raises ArchiveError, OSError. What was unpacked before the error stays.
    """
    _make_folder(target)
    are_folders = {"": True}
    for header in _headers(archive):
        parent, _, _ = header.name.rpartition("/")
        if header.name in are_folders:
            raise ArchiveError(f"has {header.name!r} twice")
        if not are_folders.get(parent):
            raise ArchiveError(f"has {header.name!r}, and {parent!r} isn't a folder that comes before it")
        are_folders[header.name] = header.isdir()
        if header.isdir():
            _make_folder(target / header.name)
        else:
            _write(archive, header, target / header.name)


def _entry(name: str, path: Path, found: os.stat_result) -> Entry:
    if len(os.fsencode(name)) > NAME_LIMIT:
        raise ArchiveError(f"{path} has a name of more than {NAME_LIMIT} bytes")
    if stat.S_ISLNK(found.st_mode):
        raise ArchiveError(
            f"{path} is a symbolic link, which isn't uploaded; replace it by the file, or make it by an action of type exec (ln -s)"
        )
    if stat.S_ISDIR(found.st_mode):
        return Entry(name, None)
    if not stat.S_ISREG(found.st_mode):
        raise ArchiveError(f"{path} is a {_kind(found.st_mode)}, which isn't uploaded; remove it from the folder")
    return Entry(name, found.st_size, bool(found.st_mode & stat.S_IXUSR), (found.st_ino, found.st_mtime_ns))


def _kind(mode: int) -> str:
    names = {stat.S_ISFIFO: "named pipe", stat.S_ISSOCK: "socket", stat.S_ISCHR: "device", stat.S_ISBLK: "device"}
    return next((name for is_kind, name in names.items() if is_kind(mode)), "special file")


def _check_limits(entries: int, size: int) -> None:
    """Raise ArchiveError for too large a tree."""
    if entries > ENTRIES_LIMIT:
        raise ArchiveError(f"holds more than {ENTRIES_LIMIT} files and folders; {_WAY_OUT}")
    if size > BYTES_LIMIT:
        raise ArchiveError(f"holds more than {BYTES_LIMIT // 1024**2} MiB; {_WAY_OUT}")


_WAY_OUT = "upload less, or fetch the rest by an action of type exec"


def _content(path: Path, size: int) -> Iterator[bytes]:
    """A file's bytes, padded to whole blocks."""
    remaining = size
    try:
        # Neither a link nor a named pipe that has taken the file's place since the listing is opened.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0) as file:
            while remaining and (chunk := file.read(min(remaining, _CHUNK))):
                remaining -= len(chunk)
                yield chunk
            if remaining or file.read(1):
                raise ArchiveError(f"{path} has changed while it was read; submit again once nothing writes to it")
    except OSError as error:
        raise ArchiveError(f"{path} can't be read: {error.strerror}") from None
    yield bytes(_padded(size) - size)


def _headers(archive: Readable) -> Iterator[tarfile.TarInfo]:
    """The entries; the caller reads the content of each before it asks for the next. Raises ArchiveError."""
    entries = size = 0
    long_name: str | None = None
    while any(block := _exactly(archive, _BLOCK)):
        try:
            header = tarfile.TarInfo.frombuf(block, *_ENCODING)
        except tarfile.HeaderError as error:
            raise ArchiveError(f"has a bad header: {error}") from None
        if header.type == tarfile.GNUTYPE_LONGNAME and long_name is None and 0 < header.size <= NAME_LIMIT + 2:
            name = _exactly(archive, _padded(header.size))[: header.size]
            size += _BLOCK + _padded(header.size)
            long_name = name.partition(b"\0")[0].decode(*_ENCODING)
            continue
        if long_name is not None:
            header.name, long_name = long_name.removesuffix("/") if header.isdir() else long_name, None
        _check(header)
        entries += 1
        size += _BLOCK + _padded(header.size)
        _check_limits(entries, size + len(_END))
        yield header
    if long_name is not None:
        raise ArchiveError("ends with a name")


def _check(header: tarfile.TarInfo) -> None:
    """Raise ArchiveError for an entry that `Tree.chunks` doesn't make."""
    is_folder = header.isdir()
    if not is_folder and header.type not in _FILES:
        raise ArchiveError(f"has {header.name!r}, which is neither a file nor a folder")
    if header.size < 0 or (is_folder and header.size):
        raise ArchiveError(f"has {header.name!r} with {header.size} bytes")
    if any(part in ("", ".", "..") for part in header.name.split("/")):
        raise ArchiveError(f"has the name {header.name!r}; names are relative, without . and ..")


def _write(archive: Readable, header: tarfile.TarInfo, path: Path) -> None:
    # O_NONBLOCK: a named pipe that a program has put there gives an error instead of an endless wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        remaining = header.size
        while remaining:
            chunk = _exactly(archive, min(remaining, _CHUNK))
            remaining -= len(chunk)
            _write_all(file.fileno(), chunk)
        os.fchmod(file.fileno(), _PROGRAM_MODE if header.mode & stat.S_IXUSR else _FILE_MODE)
        arrived = time.time() - _BEFORE_S
        os.utime(file.fileno(), (arrived, arrived))
    _exactly(archive, _padded(header.size) - header.size)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _make_folder(path: Path) -> None:
    if path.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "is a symbolic link", str(path))
    path.mkdir(exist_ok=True)
    path.chmod(_FOLDER_MODE)


def _exactly(archive: Readable, size: int) -> bytes:
    """The next `size` bytes. Raises ArchiveError at the end."""
    data = archive.read(size)
    while len(data) < size and (more := archive.read(size - len(data))):
        data += more
    if len(data) < size:
        raise ArchiveError("ends too early")
    return data


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
