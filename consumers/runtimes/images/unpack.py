"""A program that unpacks one layer's tar into one folder, in the form that overlayfs reads.

The tar isn't trusted. The program runs as a process of its own, without capabilities and with limits of the kernel, and resolves each
path inside the layer's folder (`paths_in_root.py`), so whatever the tar holds, nothing else is written. It ignores owners, drops setuid
and setgid bits and extended attributes, and skips devices, fifos and sockets. The owner may delete everything that it makes.

Whiteouts (image-spec, layer.md) become what overlayfs with `userxattr` expects (Documentation/filesystems/overlayfs.rst): `.wh.NAME` a
character device 0/0 named NAME, `.wh..wh..opq` the attribute `user.overlay.opaque`. They concern lower layers alone, so an entry of the
same layer wins over them.

Needs no site-packages, but for zstd. `layers.py` starts it; the only line on stdout is one `Result` as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import gzip
import hashlib
import json
import os
import posixpath
import resource
import shutil
import signal
import stat
import sys
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NoReturn, Self, TypedDict

from consumers.runtimes.paths_in_root import make_folders, open_in_root

MEMORY_BYTES = 1 << 30
OPEN_FILES = 1024
"""Removing a folder takes one for each level."""
HEADER_BYTES = 1 << 20
"""Of one header with long names or attributes. Linux allows 64 KiB of extended attributes in practice."""
ENTRY_OVERHEAD = 4096
"""Bytes of a tar that an entry may take beside its content: headers, and padding to 512 bytes."""
_CHUNK = 1 << 20
_OPAQUE = b"user.overlay.opaque"
_WHITEOUT, _WHITEOUT_META = ".wh.", ".wh..wh."
_OPAQUE_MARK = ".wh..wh..opq"
_FOLDER_MODE = 0o755
"""Of folders that the tar names only in paths, and of the layer's own."""
_LATEST = 1 << 34
"""Times after it, in seconds, aren't kept: not every file system has them."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_LONG_HEADERS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_HOST = (errno.EIO, errno.ENOMEM, errno.EROFS, errno.ENFILE, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.ENOTSUP)
"""Errors that no tar causes."""
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
"""More than any kernel has."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class Orders(TypedDict):
    """What to unpack: marshalled as JSON in the only argument. Descriptors are inherited."""

    blob: int
    folder: int
    diff_id: str
    bytes_limit: int
    """Of all files together, sparse ones at their apparent size."""
    entries_limit: int
    """Files, folders and links; also folders that the tar doesn't list."""
    cpu_s: int


class Result(TypedDict):
    """How it ended. `error`: `layer` if the layer is at fault, `disk_full`, `host`, or empty."""

    error: str
    text: str
    bytes: int
    entries: int
    skipped: int


class LayerError(Exception):
    """The layer is broken, or larger than allowed."""


class _Entry(tarfile.TarInfo):
    """A header. A bad one ends the reading: `tarfile` alone would take it for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined] # not in typeshed
            raise
        except tarfile.HeaderError as error:
            raise LayerError(f"its tar has a bad header: {error}") from None

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Called for each header, before `tarfile` reads what belongs to it; meant to be overridden."""
        if self.size < 0:
            raise LayerError("its tar has an entry with a negative size")
        if self.type in _LONG_HEADERS and self.size > HEADER_BYTES:
            raise LayerError(f"its tar has a header of {self.size} bytes; at most {HEADER_BYTES} are allowed")
        found: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc] # not in typeshed
        return found


class _Stream:
    """The uncompressed tar, hashed and counted."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._limit = limit
        self._count = 0
        self._hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._count += len(data)
        if self._count > self._limit:
            raise LayerError(f"its tar has more than {self._limit} bytes")
        self._hash.update(data)
        return data

    def digest(self) -> str:
        """Of everything, which is read to the end."""
        while self.read(_CHUNK):
            pass
        return f"sha256:{self._hash.hexdigest()}"


class _Layer:
    """The folder, as it fills."""

    def __init__(self, root: int, bytes_limit: int, entries_limit: int) -> None:
        self._root = root
        self._bytes_limit, self._entries_limit = bytes_limit, entries_limit
        self.bytes = self.entries = self.skipped = 0
        self._times: dict[str, float] = {}
        """Of folders. They are set at the end, because each new entry changes its folder's."""
        self._whiteouts: dict[str, None] = {}
        """Paths, without the prefix."""
        os.fchmod(root, _FOLDER_MODE)

    def add(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        path = _inside(entry.name)
        name = posixpath.basename(path)
        if name.startswith(_WHITEOUT):
            self._remember(path, name)
            return
        if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
            self.skipped += 1
            return
        if not name:
            if not entry.isdir():
                raise LayerError("the root of its tar is no folder")
            os.fchmod(self._root, _mode(entry) | stat.S_IRWXU)
            self._times[path] = _time(entry)
            return
        self._count(entry.size if entry.isreg() else 0)
        with self._parent(path) as parent:
            self._clear(parent, name, keep_folder=entry.isdir())
            if entry.isdir():
                self._folder(parent, name, entry)
                self._times[path] = _time(entry)
            elif entry.issym():
                os.symlink(entry.linkname, name, dir_fd=parent)
                os.utime(name, (_time(entry),) * 2, dir_fd=parent, follow_symlinks=False)
            elif entry.islnk():
                self._link(parent, name, entry)
            else:
                self._file(tar, parent, name, entry)

    def finish(self) -> None:
        """Make the whiteouts, then set the folders' times."""
        for path in self._whiteouts:
            with _blaming(path):
                self._whiteout(path)
        for path, time in self._times.items():
            try:
                folder = open_in_root(self._root, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                continue  # a later entry replaced it
            os.utime(folder, (time, time))
            os.close(folder)

    def _count(self, size: int = 0, entries: int = 1) -> None:
        self.bytes += size
        self.entries += entries
        if self.bytes > self._bytes_limit:
            raise LayerError(f"it has more than {self._bytes_limit} bytes unpacked")
        if self.entries > self._entries_limit:
            raise LayerError(f"it has more than {self._entries_limit} files and folders")

    @contextmanager
    def _parent(self, path: str) -> Iterator[int]:
        """The folder of a path, made if it is missing."""
        folder = posixpath.dirname(path)
        try:
            parent = open_in_root(self._root, folder, os.O_PATH | os.O_DIRECTORY)
        except FileNotFoundError:
            self._count(entries=folder.count("/"))  # at most so many are made
            parent = make_folders(self._root, folder, _FOLDER_MODE)
        try:
            yield parent
        finally:
            os.close(parent)

    def _clear(self, parent: int, name: str, *, keep_folder: bool) -> None:
        """Remove what an earlier entry has put there."""
        try:
            is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode)
        except FileNotFoundError:
            return
        if not is_folder:
            os.unlink(name, dir_fd=parent)
        elif not keep_folder:
            shutil.rmtree(name, dir_fd=parent)

    def _folder(self, parent: int, name: str, entry: tarfile.TarInfo) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            pass
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        os.fchmod(folder, _mode(entry) | stat.S_IRWXU)
        os.close(folder)

    def _file(self, tar: tarfile.TarFile, parent: int, name: str, entry: tarfile.TarInfo) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        source = tar.extractfile(entry)
        assert source is not None, "of a regular file"
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb", buffering=0) as file:
            shutil.copyfileobj(source, file, _CHUNK)
            os.fchmod(file.fileno(), _mode(entry) & ~stat.S_ISVTX | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(file.fileno(), (_time(entry),) * 2)

    def _link(self, parent: int, name: str, entry: tarfile.TarInfo) -> None:
        target = _inside(entry.linkname)
        folder = open_in_root(self._root, posixpath.dirname(target), os.O_PATH | os.O_DIRECTORY)
        try:
            if not stat.S_ISREG(os.lstat(posixpath.basename(target), dir_fd=folder).st_mode):
                raise LayerError(f"{entry.name!r:.200} is a hard link to {entry.linkname!r:.200}, which is no file")
            os.link(posixpath.basename(target), name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(folder)

    def _remember(self, path: str, name: str) -> None:
        """Keep a whiteout for the end, or hide what lower layers have in a folder."""
        self._count()
        if name == _OPAQUE_MARK:
            self._hide_below(posixpath.dirname(path))
        elif name.startswith(_WHITEOUT_META):
            self.skipped += 1
        elif name[len(_WHITEOUT) :] in ("", ".", ".."):
            raise LayerError(f"it has the entry {path!r:.200}, which names no file")
        else:
            self._whiteouts[posixpath.join(posixpath.dirname(path), name[len(_WHITEOUT) :])] = None

    def _hide_below(self, path: str) -> None:
        with self._parent(posixpath.join(path, "x")):
            pass
        folder = open_in_root(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.setxattr(folder, _OPAQUE, b"y")
        finally:
            os.close(folder)

    def _whiteout(self, path: str) -> None:
        name = posixpath.basename(path)
        try:
            with self._parent(path) as parent:
                try:
                    found = os.lstat(name, dir_fd=parent)
                except FileNotFoundError:
                    os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(0, 0), dir_fd=parent)
                    return
        except (NotADirectoryError, FileExistsError):
            return  # a file of this layer lies where the folder was
        if stat.S_ISDIR(found.st_mode):
            self._hide_below(path)


def unpack(blob: IO[bytes], layer: _Layer, diff_id: str, bytes_limit: int, entries_limit: int) -> None:
    """Unpack a tar. Raises LayerError, and OSError from the disk."""
    with _uncompressed(blob) as file:
        stream = _Stream(file, bytes_limit + entries_limit * ENTRY_OVERHEAD)
        try:
            with tarfile.open(
                fileobj=stream, mode="r|", bufsize=_CHUNK, tarinfo=_Entry, encoding="utf-8", errors="surrogateescape"
            ) as tar:
                while (entry := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined] # a list that would hold every entry
                    if entry.size < 0:  # an extended header may say so
                        raise LayerError("its tar has an entry with a negative size")
                    with _blaming(entry.name):
                        layer.add(tar, entry)
            layer.finish()
            found = stream.digest()
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, RecursionError) as error:
            raise LayerError(f"its tar can't be read: {error or type(error).__name__}") from None
        except MemoryError:
            raise LayerError(f"its tar needs more than {MEMORY_BYTES} bytes of memory to be read") from None
    if found != diff_id:
        raise LayerError(f"its tar has the digest {found}, and the image says {diff_id}")


@contextmanager
def _blaming(path: str) -> Iterator[None]:
    """Raises LayerError for an OSError that comes from what the layer holds at `path`."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError
        raise
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise LayerError(f"{path!r:.200} is larger than allowed") from None
        if error.errno in _DISK_FULL or error.errno in _HOST:
            raise
        raise LayerError(f"{path!r:.200} can't be unpacked: {error.strerror or error}") from None
    except ValueError as error:  # a zero byte in a name
        raise LayerError(f"{path!r:.200} can't be unpacked: {error}") from None


def _inside(name: str) -> str:
    """A path of the tar, absolute, as it would be in a root folder: `..` stays there."""
    return posixpath.normpath(f"/{name.lstrip('/')}")


def _mode(entry: tarfile.TarInfo) -> int:
    return entry.mode & (0o777 | stat.S_ISVTX)


def _time(entry: tarfile.TarInfo) -> float:
    """Its time of change; 0 if no file system could keep it. An extended header may say `nan`."""
    return entry.mtime if 0 <= entry.mtime < _LATEST else 0


@contextmanager
def _uncompressed(blob: IO[bytes]) -> Iterator[IO[bytes]]:
    """The tar in a blob, by the blob's first bytes: what the image says of it isn't always right."""
    start = blob.read(len(_ZSTD))
    blob.seek(0)
    if start.startswith(_GZIP):
        with gzip.open(blob, "rb") as file:
            yield file  # type: ignore[misc] # it reads bytes, as IO does
    elif start == _ZSTD:
        with _from_zstd(blob.fileno()) as file:
            yield file
    else:
        yield blob


@contextmanager
def _from_zstd(blob: int) -> Iterator[IO[bytes]]:
    """The library reads and writes whole files only; it gets a pipe for one, in a process of its own."""
    import cramjam  # most layers do without it, and it lies in site-packages

    reader, writer = os.pipe()
    unpacker = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(reader)
            if os.getppid() == unpacker:
                source = cramjam.File(f"/proc/self/fd/{blob}", truncate=False)
                # If it could read the pipe, it would never notice that nobody else does.
                target = cramjam.File(f"/proc/self/fd/{writer}", read=False, truncate=False)
                cramjam.zstd.decompress_into(source, target)
                code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as file:
            yield file
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if status != 0:
        raise LayerError("it is no whole zstd stream, or needs too much memory to be read")


def confine(cpu_s: int, file_bytes: int) -> None:
    """Give up privileges, and set limits. Raises OSError."""
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        _fail("no_new_privs")
    for capability in range(_CAPABILITIES):
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # only who has privileges can, and needs to
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    if _LIBC.capset(header, none) != 0:
        _fail("capset")
    os.umask(0)
    for limit, value, kill in (
        (resource.RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 5),  # SIGXCPU tells the parent why, and SIGKILL would not
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NOFILE, OPEN_FILES, OPEN_FILES),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = kill if hard == resource.RLIM_INFINITY else min(kill, hard)
        resource.setrlimit(limit, (min(value, most), most))


def _fail(what: str) -> NoReturn:
    raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def run(orders: Orders) -> Result:
    """Unpack, and write all of it to the disk."""
    result: Result = {"error": "", "text": "", "bytes": 0, "entries": 0, "skipped": 0}
    try:
        confine(orders["cpu_s"], orders["bytes_limit"])
        layer = _Layer(orders["folder"], orders["bytes_limit"], orders["entries_limit"])
        with os.fdopen(orders["blob"], "rb") as blob:
            unpack(blob, layer, orders["diff_id"], orders["bytes_limit"], orders["entries_limit"])
        if _LIBC.syncfs(orders["folder"]) != 0:
            _fail("syncfs")
        result.update(bytes=layer.bytes, entries=layer.entries, skipped=layer.skipped)
    except LayerError as error:
        result.update(error="layer", text=str(error))
    except OSError as error:
        result.update(error="disk_full" if error.errno in _DISK_FULL else "host", text=str(error))
    return result


def main() -> None:
    """Run the program."""
    result = run(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(result) + "\n")
