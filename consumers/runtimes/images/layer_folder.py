"""The folder of one layer as it fills, in the form that overlayfs reads.

Each path is resolved inside the folder (`paths_in_root.py`). Runs in the confined process of `unpack.py`, and needs no site-packages.
"""

from __future__ import annotations

import errno
import gzip
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from consumers.runtimes.images.layer_tar import CHUNK, LayerError
from consumers.runtimes.paths_in_root import make_folders, open_in_root

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_HOST = (errno.EIO, errno.ENOMEM, errno.EROFS, errno.ENFILE, errno.ENOSYS, errno.EACCES, errno.EPERM, errno.ENOTSUP)
"""Errors that no tar causes."""
_OPAQUE = b"user.overlay.opaque"
_WHITEOUT, _WHITEOUT_META = ".wh.", ".wh..wh."
_OPAQUE_MARK = ".wh..wh..opq"
_FOLDER_MODE = 0o755
"""Of folders that the tar names only in paths, and of the layer's own."""
_LATEST = 1 << 34
"""Times after it, in seconds, aren't kept: not every file system has them."""


class LayerFolder:
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
            with blaming(path):
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
            remaining = entry.size
            while remaining:
                # A buffer of the whole chunk for each small file would cost more than its other work together.
                data = source.read(min(remaining, CHUNK))
                if not data:
                    raise LayerError(f"{entry.name!r:.200} ends too early")
                remaining -= len(data)
                _write(file.fileno(), data)
            os.fchmod(file.fileno(), _mode(entry) & ~stat.S_ISVTX | stat.S_IRUSR | stat.S_IWUSR)
            os.utime(file.fileno(), (_time(entry),) * 2)

    def _link(self, parent: int, name: str, entry: tarfile.TarInfo) -> None:
        target = _inside(entry.linkname)
        source = posixpath.basename(target)
        folder = open_in_root(self._root, posixpath.dirname(target), os.O_PATH | os.O_DIRECTORY)
        try:
            mode = os.lstat(source, dir_fd=folder).st_mode
            if stat.S_ISLNK(mode):  # some builders find twins among them
                os.symlink(os.readlink(source, dir_fd=folder), name, dir_fd=parent)
            elif stat.S_ISREG(mode):
                os.link(source, name, src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
            else:
                raise LayerError(f"{entry.name!r:.200} is a hard link to {entry.linkname!r:.200}, which is no file")
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


@contextmanager
def blaming(path: str) -> Iterator[None]:
    """Raises LayerError for an OSError that comes from what the layer holds at `path`."""
    try:
        yield
    except gzip.BadGzipFile:  # an OSError
        raise
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise LayerError(f"{path!r:.200} is larger than allowed") from None
        if error.errno in DISK_FULL or error.errno in _HOST:
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


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
