"""Carries a run's changes to the workspace into the container of its evaluation, which begins as `prepare` left the first one.

`record` lists the workspace before the run: of each entry its inode and the time of its last change (ctime), which no program can set.
After the run, `pack` writes what isn't listed any more, or differs, and `apply` repeats that in the other container. So the cost is that
of what the run changed, and of one look at each entry.

Not kept: extended attributes, and owners, since all files that a run can make are its own user's. Sockets aren't carried.
"""

from __future__ import annotations

import errno
import io
import marshal
import os
import shutil
import stat
from collections.abc import Iterator
from typing import IO, Any, TypeAlias

_CHUNK = 1024 * 1024
_ALL = stat.S_IRWXU

Listing: TypeAlias = dict[str, tuple[int, int, int]]
"""By path relative to the workspace: inode, ctime in ns, type of file."""


_UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""No path leads there: the entry has gone, or lies too deep. It isn't carried."""


def listing(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """All entries below `root`, a folder before what is in it. What can't be listed is made so: its owner reads it."""
    folders = [""]
    while folders:
        prefix = folders.pop()
        for name in sorted(_names(f"{root}/{prefix}")):
            path = prefix + name
            try:
                found = os.lstat(f"{root}/{path}")
            except OSError as error:
                if error.errno not in _UNREACHABLE:
                    raise
                continue
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                folders.append(f"{path}/")


def record(root: str, to: int) -> None:
    """Write the listing of `root` to an open file."""
    entries: Listing = {path: _version(found) for path, found in listing(root)}
    with os.fdopen(os.dup(to), "wb") as file:
        marshal.dump(entries, file)


def pack(root: str, recorded: int, to: int) -> None:
    """Write to `to` how `root` differs from its listing in the open file `recorded`."""
    with os.fdopen(os.dup(recorded), "rb") as file:
        file.seek(0)
        before: Listing = marshal.load(file)  # noqa: S302 - the worker's own file, which no program reaches
    after = list(listing(root))
    kept = {path for path, _ in after}
    linked: dict[tuple[int, int], str] = {}
    with os.fdopen(os.dup(to), "wb") as out:
        for path in before:
            parent = path.rpartition("/")[0]
            if path not in kept and (not parent or parent in kept):
                _put(out, {"kind": "gone", "path": path})
        for path, found in after:
            if before.get(path) != _version(found):
                _put_entry(out, root, path, found, linked)
        _put(out, {"kind": "end"})


def apply(root: str, source: int) -> None:
    """Make the changes that `pack` wrote. Raises EOFError if they end too early."""
    modes: dict[str, tuple[int, int]] = {}
    with os.fdopen(os.dup(source), "rb") as stream:
        while (entry := _get(stream))["kind"] != "end":
            path = f"{root}/{entry['path']}"
            _open_up(os.path.dirname(path), modes)  # noqa: PTH120 - as in `supervisor`
            if entry["kind"] == "folder":
                if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114 - as above
                    _remove(path)
                    os.mkdir(path)  # noqa: PTH102 - as above
                os.chmod(path, entry["mode"] | _ALL)  # noqa: PTH101 - as above
                modes[path] = entry["mode"], entry["mtime_ns"]
                continue
            _remove(path)
            _make(root, path, entry, stream)
    for path in sorted(modes, reverse=True):  # a folder after those in it
        _close(path, *modes[path])


def _make(root: str, path: str, entry: dict[str, Any], stream: IO[bytes]) -> None:
    """Make an entry that is no folder where nothing is."""
    match entry["kind"]:
        case "gone":
            return
        case "link":
            os.symlink(entry["target"], path)  # noqa: PTH211 - as above
        case "same":
            os.link(f"{root}/{entry['target']}", path, follow_symlinks=False)
            return
        case "pipe":
            os.mkfifo(path)
        case "file":
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                while (chunk := _get(stream))["size"]:
                    file.seek(chunk["at"])
                    _copy(stream, file, chunk["size"])
                file.truncate(entry["size"])
    times = (entry["mtime_ns"], entry["mtime_ns"])
    if entry["kind"] != "link":
        os.chmod(path, entry["mode"])  # noqa: PTH101 - as above
    os.utime(path, ns=times, follow_symlinks=False)


def _put_entry(out: IO[bytes], root: str, path: str, found: os.stat_result, linked: dict[tuple[int, int], str]) -> None:
    common = {"path": path, "mode": stat.S_IMODE(found.st_mode), "mtime_ns": found.st_mtime_ns}
    if stat.S_ISDIR(found.st_mode):
        _put(out, {"kind": "folder", **common})
        return
    identity = (found.st_dev, found.st_ino)
    if found.st_nlink > 1 and identity in linked:
        _put(out, {"kind": "same", "path": path, "target": linked[identity]})
        return
    if stat.S_ISLNK(found.st_mode):
        _put(out, {"kind": "link", "target": os.readlink(f"{root}/{path}"), **common})  # noqa: PTH115 - as above
    elif stat.S_ISFIFO(found.st_mode):
        _put(out, {"kind": "pipe", **common})
    elif stat.S_ISREG(found.st_mode):
        with _readable(f"{root}/{path}", found) as file:
            _put(out, {"kind": "file", "size": found.st_size, **common})
            for start, end in _data(file.fileno(), found.st_size):
                file.seek(start)
                while start < end and (data := file.read(min(_CHUNK, end - start))):
                    _put(out, {"size": len(data), "at": start})
                    out.write(data)
                    start += len(data)
            _put(out, {"size": 0})
    else:
        return
    linked[identity] = path


def _data(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that aren't holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # a hole up to the end
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, min(end, size)


def _readable(path: str, found: os.stat_result) -> IO[bytes]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags)
    except PermissionError:
        os.chmod(path, stat.S_IMODE(found.st_mode) | stat.S_IRUSR)  # noqa: PTH101 - as above
        descriptor = os.open(path, flags)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
    return os.fdopen(descriptor, "rb", buffering=0)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - as above
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(folder).st_mode)
        try:
            os.chmod(folder, mode | _ALL)  # noqa: PTH101 - as above
        except PermissionError:  # another user's, from the image: no program has changed it
            return []
        return os.listdir(folder)  # noqa: PTH208 - as above
    except OSError as error:
        if error.errno in _UNREACHABLE:
            return []
        raise


def _open_up(folder: str, modes: dict[str, tuple[int, int]]) -> None:
    """Write to a folder that stays as it is, and is closed again at the end if it was."""
    if folder in modes:
        return
    found = os.lstat(folder)
    modes[folder] = stat.S_IMODE(found.st_mode), found.st_mtime_ns
    if not os.access(folder, os.W_OK | os.X_OK):
        os.chmod(folder, stat.S_IMODE(found.st_mode) | _ALL)  # noqa: PTH101 - as above


def _close(folder: str, mode: int, mtime_ns: int) -> None:
    """Give a folder its mode and time; one that another user has, from the image, keeps them."""
    if os.path.islink(folder) or not os.path.isdir(folder):  # noqa: PTH112, PTH114 - as above
        return  # something else has taken its place
    try:
        os.utime(folder, ns=(mtime_ns, mtime_ns))
        os.chmod(folder, mode)  # noqa: PTH101 - as above
    except PermissionError:
        pass


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114 - as above
        for parent, names, _ in os.walk(path):
            for name in names:
                if not os.path.islink(f"{parent}/{name}"):  # noqa: PTH114 - as above
                    os.chmod(f"{parent}/{name}", _ALL)  # noqa: PTH101 - as above
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)  # noqa: PTH108 - as above


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_ctime_ns, stat.S_IFMT(found.st_mode)


def _put(out: IO[bytes], what: dict[str, Any]) -> None:
    data = marshal.dumps(what)
    out.write(len(data).to_bytes(4, "big") + data)


def _get(stream: IO[bytes]) -> dict[str, Any]:
    data = _exactly(stream, int.from_bytes(_exactly(stream, 4), "big"))
    found: dict[str, Any] = marshal.loads(data)  # noqa: S302 - of `pack`, in a process of the keeper's
    return found


def _copy(stream: IO[bytes], to: io.BufferedIOBase | IO[bytes], size: int) -> None:
    while size:
        size -= to.write(_exactly(stream, min(size, _CHUNK)))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the changes of the run end too early")
    return data
