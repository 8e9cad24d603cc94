"""Landlock: a process gives up files, ports and signals for itself and for every process that it starts from now on.

For places where bubblewrap can't run. Needs no privileges, and can't be undone. `restrict` reports what this kernel enforces, because
each ABI of Landlock added something (`SINCE`). From the first ABI on, a restricted process also can't trace processes outside, not even
through /proc/PID/mem, and can't mount; so bubblewrap can't run below it.

No ABI up to 7 restricts UDP, connections to a named Unix socket, or looking at and changing a file's metadata (stat, chmod, utime). The
port rules don't see MPTCP and TCP Fast Open either: install the filter of `seccomp.py` as well, which refuses both.

A forked child calls this before its exec, so nothing here needs site-packages. Source of numbers and structures: linux/landlock.h, and
Documentation/userspace-api/landlock.rst for the ABI that each came with.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Guard(StrEnum):
    """Something that Landlock can restrict."""

    FILES = "files"
    """Reading, executing, writing, making, renaming and removing files outside of the given paths."""
    TRUNCATE = "truncate"
    """Truncating files that may not be written."""
    PORTS = "ports"
    """Connecting TCP sockets to other ports than the given ones, and binding them to any."""
    DEVICES = "devices"
    """ioctl on devices outside of the writable paths."""
    ABSTRACT_SOCKETS = "abstract_sockets"
    """Connecting to abstract Unix sockets of processes outside."""
    SIGNALS = "signals"
    """Signals to processes outside."""


SINCE: Mapping[Guard, int] = {
    Guard.FILES: 1,
    Guard.TRUNCATE: 3,
    Guard.PORTS: 4,
    Guard.DEVICES: 5,
    Guard.ABSTRACT_SOCKETS: 6,
    Guard.SIGNALS: 6,
}
"""The ABI that brought each guard."""


class Enforced(NamedTuple):
    """What `restrict` did. `abi`: the kernel's, 0 without Landlock. `guards`: in force from now on. `lacking`: asked for, but this kernel
    has no such guard. `missing`: paths that don't exist, for which there is no rule."""

    abi: int
    guards: frozenset[Guard]
    lacking: frozenset[Guard]
    missing: tuple[Path, ...]


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the calls, the same on every machine."""
_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_FIRST_ABI = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_UNIX_SOCKET, _SIGNAL = 1 << 0, 1 << 1

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
"""Rights that a rule for something else than a folder may have; the kernel refuses the others there."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_NEVER = _MAKE_CHAR | _MAKE_BLOCK
"""Nobody gets these: with a container's root, a device made in the workspace would be the host's disk."""

_PR_SET_NO_NEW_PRIVS = 38
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def abi() -> int:
    """The kernel's Landlock ABI; 0 if Landlock isn't there, switched off, or refused by a filter around us."""
    version: int = _LIBC.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))
    return max(0, version)


def restrict(read: Sequence[Path], write: Sequence[Path], connect_ports: Sequence[int] | None) -> Enforced:
    """Restrict the calling process; files and sockets that it has open stay usable.

    Below `read` it may read and execute, below `write` also write, make, move and remove; a path may be a file. A symlink stands for
    its target. `connect_ports`: TCP ports that it may connect to, on every host; it may then bind none. None: TCP is left alone.

    Does nothing on a kernel without Landlock. OSError if the kernel refuses a rule or a path can't be opened; then nothing is restricted.
    """
    version = abi()
    wanted = frozenset(SINCE) - (frozenset((Guard.PORTS,)) if connect_ports is None else frozenset())
    guards = frozenset(guard for guard in wanted if SINCE[guard] <= version)
    if not guards:
        return Enforced(version, guards, wanted, ())
    files = _FIRST_ABI
    files |= (
        _REFER if version >= 2 else 0
    )  # the first ABI refuses to move a file to another folder, without a right for it
    files |= _TRUNCATE if Guard.TRUNCATE in guards else 0
    files |= _IOCTL_DEV if Guard.DEVICES in guards else 0
    ports = _BIND_TCP | _CONNECT_TCP if Guard.PORTS in guards else 0
    scopes = _ABSTRACT_UNIX_SOCKET | _SIGNAL if Guard.SIGNALS in guards else 0
    missing = []
    # Kernels that know fewer fields accept the others if they are zero.
    ruleset = _call(_CREATE_RULESET, struct.pack("=QQQ", files, ports, scopes), ctypes.c_size_t(24), ctypes.c_uint(0))
    try:
        for paths, rights in ((read, files & _READ), (write, files & ~_NEVER)):
            for path in paths:
                try:
                    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
                except (FileNotFoundError, NotADirectoryError):
                    missing.append(path)
                    continue
                try:
                    allowed = rights if stat.S_ISDIR(os.fstat(opened).st_mode) else rights & _OF_FILES
                    _add_rule(ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, opened))
                finally:
                    os.close(opened)
        for port in connect_ports or () if ports else ():
            _add_rule(ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port))
        no_more_privileges = _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        assert no_more_privileges == 0, "every kernel with Landlock has it"
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return Enforced(version, guards, wanted - guards, tuple(missing))


def _add_rule(ruleset: int, kind: int, rule: bytes) -> None:
    _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(kind), rule, ctypes.c_uint(0))


def _call(number: int, *arguments: object) -> int:
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, f"Landlock refused call {number}: {os.strerror(failure)}")
    return result
