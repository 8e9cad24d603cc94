"""Paths that are resolved inside one folder, as if that folder were the root of the file system.

For folders whose content isn't trusted: no link, no `..` and no mount in them leads out, also while other programs change them, because
the kernel resolves the whole path (openat2(2), Linux ≥ 5.6). Absolute links start at the folder.

A forked child uses this module, so nothing here needs site-packages. Source of numbers and structures: linux/openat2.h.
"""

from __future__ import annotations

import ctypes
import errno
import os

_OPENAT2 = 437
"""Number of the call, the same on every machine."""
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x01, 0x02, 0x04, 0x10
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _IN_ROOT
_TRIES = 32
"""Renames elsewhere on the host can make a path with `..` fail with EAGAIN."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class _How(ctypes.Structure):
    """struct open_how."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_in_root(root: int, path: str, flags: int, mode: int = 0, *, follow_links: bool = True) -> int:
    """A descriptor of `path` below the open folder `root`, closed on exec. `mode`: of a file that `flags` make. Raises OSError.

    ELOOP: a component is a link, and `follow_links` is false. EXDEV: the path leads to a mount inside the folder. ENOSYS: the kernel is
    too old. Only the last component of `path` can be made.
    """
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a path holds a zero byte", path)
    how = _How(flags | os.O_CLOEXEC, mode, _RESOLVE | (0 if follow_links else _NO_SYMLINKS))
    for _ in range(_TRIES):
        # The empty path has no meaning for openat2; here it is the folder itself.
        descriptor: int = _LIBC.syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(name or b"."),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if descriptor >= 0:
            return descriptor
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def make_folders(root: int, path: str, mode: int, *, follow_links: bool = True) -> int:
    """An O_PATH descriptor of the folder `path` below `root`. Missing folders are made with `mode`, less the umask. Raises OSError.

    ENOTDIR: a component is no folder, or a link to something that doesn't exist.
    """
    try:
        return open_in_root(root, path, os.O_PATH | os.O_DIRECTORY, follow_links=follow_links)
    except FileNotFoundError:
        pass
    parent = open_in_root(root, "", os.O_PATH | os.O_DIRECTORY)
    names = [name for name in path.split("/") if name not in ("", ".")]
    is_new = False
    try:
        for depth, name in enumerate(names, 1):
            if is_new and name != "..":  # nothing lies in it, and the whole path would be resolved for each component
                folder = _made(parent, name, mode)
            else:
                try:
                    folder = open_in_root(root, "/".join(names[:depth]), os.O_PATH | os.O_DIRECTORY)
                    is_new = False
                except FileNotFoundError:
                    folder, is_new = _made(parent, name, mode), True
            os.close(parent)
            parent = folder
    finally:
        os.close(parent)
    return open_in_root(root, path, os.O_PATH | os.O_DIRECTORY, follow_links=follow_links)


def _made(parent: int, name: str, mode: int) -> int:
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:  # another process has made it, or it is a link
        pass
    return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
