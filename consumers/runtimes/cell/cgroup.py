"""Control groups of sessions: where they can be made, and one session's `Group`.

Owns the groups `polar-<name>` below this process's own group, in cgroup v2 or v1. A hybrid host has some controllers in each. Groups lie
below our own group because limits are hierarchical: a limit of the worker's service or container then holds for its sessions too.
Invariants: every process in such a group belongs to the session that gave the group its name. A worker is never in one, so it can always
report the session's end.

In v2 a group with processes can't pass controllers on ("no internal processes", Documentation/admin-guide/cgroup-v2.rst). Therefore
`find` moves all processes of our own group into its child `polar.worker`, and worker processes that start later find themselves there.

What each limit means is in `limits`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from consumers.runtimes import proctree
from consumers.runtimes.base import SandboxError

CONTROLLERS = ("cpu", "memory", "pids")

_PREFIX = "polar-"
_WORKERS = "polar.worker"
"""Not a name of a session's group, as `_PREFIX` ends with another character."""
_PROBE = "polar.probe-"
_CPU_PERIOD_US = 100_000
"""The kernel's default; a program that has used its share waits for less than this."""
_KILL_S = 10.0
"""Limit for killing a group's processes; only uninterruptible sleep takes longer."""
_REMOVE_S = 5.0
"""Limit for removing a group. The kernel refuses while the last dead process is still on its way out, usually for milliseconds."""
_CHARGE = 4 * 1024 * 1024
"""A group is at its limit if less than this is left: an allocation that doesn't fit is no part of the peak; a huge page has 2 MiB."""
_UNLIMITED = 2**60
"""A limit above this is none: v1 shows "no limit" as the largest number of pages."""


@dataclass(frozen=True)
class Parent:
    """A folder in which groups can be made, in the hierarchy of version 1 or 2 that is mounted at `mount`."""

    version: int
    folder: str
    mount: str


@dataclass(frozen=True)
class Found:
    """What `find` has found: for each controller its `Parent`, or else in `reasons` half a sentence that says why there is none."""

    parents: Mapping[str, Parent]
    reasons: Mapping[str, str]


class Group:
    """The processes of one session, in one folder for each hierarchy. Without any folder, all methods do nothing.

    `oom_killed` and `host_out_of_memory` compare with the time when this object was made. So several programs can run in one group, one
    after another, each with an object of its own.
    """

    def __init__(self, name: str, folders: Mapping[str, Parent]) -> None:
        """`folders`: each folder of the group, with the place it was made in."""
        self.name = name
        self._folders = dict(folders)
        self._before = self._memory_events()
        """When this object was made."""

    @property
    def folders(self) -> list[str]:
        return list(self._folders)

    @property
    def join_paths(self) -> list[str]:
        """Files to each of which a forked child writes `0` before it gives up privileges or executes a program."""
        return [f"{folder}/cgroup.procs" for folder in self._folders]

    def pids(self) -> set[int]:
        """As the function `pids`."""
        return pids(self._folders)

    def oom_killed(self) -> bool:
        """True if the kernel has killed a process of the group because the group reached its own limit."""
        return self._killed_for_memory() and self._was_at_limit()

    def host_out_of_memory(self) -> bool:
        """True if the kernel has killed a process of the group although the group was within its limit: a failure of the machine."""
        return self._killed_for_memory() and not self._was_at_limit()

    def _killed_for_memory(self) -> bool:
        return self._memory_events().get("oom_kill", 0) > self._before.get("oom_kill", 0)

    def _was_at_limit(self) -> bool:
        for folder, parent in self._folders.items():
            if parent.version == 2:
                return self._memory_events().get("oom", 0) > self._before.get("oom", 0)
            # v1 has no such count: not even `failcnt` rises on Linux 6.18. So in v1 an earlier visit to the limit counts as well.
            with suppress(OSError):
                limit, peak = (int(_read(f"{folder}/memory.{name}_in_bytes")) for name in ("limit", "max_usage"))
                return peak + _CHARGE >= limit
        return False

    def _memory_events(self) -> dict[str, int]:
        """The kernel's counts of this group; none for a group without a memory controller, or one that is removed."""
        for folder, parent in self._folders.items():
            with suppress(OSError):
                return _pairs(f"{folder}/{'memory.events' if parent.version == 2 else 'memory.oom_control'}")
        return {}


def make(name: str, parents: Mapping[str, Parent], limits: Mapping[str, float | None]) -> Group:
    """Make the group `name`, or set the limits of the existing one: another worker of this host may have made it.

    `limits`, by controller: `cpu` in CPUs, `memory` in bytes, `pids` as a number of processes and threads; None or missing for no limit.
    Raises SandboxError `supervisor_lost`: not `not_started`, which what a run left can cause.
    """
    folders = {f"{parent.folder}/{_PREFIX}{name}": parent for parent in parents.values()}
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder)  # noqa: PTH102 - paths are text here, as a forked child needs them
        for controller, parent in parents.items():
            if (value := limits.get(controller)) is not None:
                _limit(f"{parent.folder}/{_PREFIX}{name}", parent.version, controller, value)
    except OSError as error:
        raise SandboxError("supervisor_lost", f"the limits of {name} can't be set: {error}") from error
    return Group(name, folders)


def pids(folders: Iterable[str]) -> set[int]:
    """All processes in a group, without zombies and without processes that this process's PID namespace doesn't show."""
    found: set[int] = set()
    for folder in folders:
        with suppress(FileNotFoundError):
            found.update(map(int, _read(f"{folder}/cgroup.procs").split()))
    return found - {0}  # v1 shows a process outside of our namespace as 0


def kill(folders: Collection[str], deadline_s: float = _KILL_S) -> set[int]:
    """Kill all processes of a group, also those that are forked meanwhile. Returns those that couldn't be killed."""
    for folder in folders:
        with suppress(OSError):  # only v2 has the file, since Linux 5.14
            _write(f"{folder}/cgroup.kill", "1")
    return proctree.kill_until_gone(lambda: pids(folders), deadline_s)


def remove(folders: Iterable[str], deadline_s: float = _REMOVE_S) -> None:
    """Remove a group, whose processes must be dead. Raises SandboxError `not_removed` if it isn't empty at the deadline."""
    end = time.monotonic() + deadline_s
    for folder in folders:
        _remove(folder, end)


def find(mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> Found:
    """Find where groups can be made, by making a group in each place, setting limits, and joining it with a process."""
    parents: dict[str, Parent] = {}
    reasons = dict.fromkeys(CONTROLLERS, "no cgroup controller of this kind is mounted")
    for parent, controllers in places(_read(mounts), _read(own)):
        offered = controllers or _shared(parent.folder)
        for controller, problem in _try(parent, [name for name in offered if name not in parents]).items():
            if problem:
                reasons[controller] = problem
            else:
                parents[controller] = parent
                del reasons[controller]
    return Found(parents, reasons)


def memory_ceiling(mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> int | None:
    """The smallest memory limit in bytes of our own group and the visible groups above it; None: no limit."""
    limits = []
    for parent, controllers in places(_read(mounts), _read(own)):
        if parent.version == 1 and "memory" not in controllers:
            continue
        name = "memory.max" if parent.version == 2 else "memory.limit_in_bytes"
        folder = parent.folder
        while folder.startswith(parent.mount):
            with suppress(OSError, ValueError):  # the root has no such file in v2; "max" is no number
                limits.append(int(_read(f"{folder}/{name}")))
            folder = folder.rpartition("/")[0]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)


def places(mounts: str, own: str) -> Iterator[tuple[Parent, list[str]]]:
    """Where groups of ours would lie, and for which of CONTROLLERS; in v2, where the folder itself says it, the list is empty.

    `mounts` and `own` are the texts of /proc/self/mountinfo (proc(5)) and /proc/self/cgroup (cgroups(7)). A mount that doesn't show our
    group, as in a container, is left out.
    """
    groups = _own_groups(own)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = (_unescaped(field) for field in before.split()[3:5])
        controllers = [name for name in CONTROLLERS if name in options.split(",")] if kind == "cgroup" else []
        if kind == "cgroup" and not controllers:
            continue
        group = PurePosixPath(groups.get(controllers[0] if controllers else "", ".."))
        if ".." in group.parts or not group.is_relative_to(root):
            continue
        folder = f"{mount}/{group.relative_to(root)}".removesuffix("/.").removesuffix(f"/{_WORKERS}")
        yield Parent(1 if kind == "cgroup" else 2, folder, mount), controllers


def _own_groups(text: str) -> dict[str, str]:
    """Controller to path of this process's group, from /proc/self/cgroup; the path in v2 has the key ""."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _shared(folder: str) -> list[str]:
    """The controllers that the v2 group `folder` has, passed on to its children as far as possible."""
    try:
        available = [name for name in _read(f"{folder}/cgroup.controllers").split() if name in CONTROLLERS]
        passed_on = _read(f"{folder}/cgroup.subtree_control").split()
    except OSError:
        return []
    if missing := [name for name in available if name not in passed_on]:
        with suppress(OSError):  # `_try` finds what is missing and says so
            _pass_on(folder, missing)
    return available


def _pass_on(folder: str, controllers: list[str]) -> None:
    control = f"{folder}/cgroup.subtree_control"
    if not os.access(control, os.W_OK):
        return
    if os.path.exists(f"{folder}/cgroup.type"):  # noqa: PTH110 - all groups but the root, which may have processes
        workers = f"{folder}/{_WORKERS}"
        with suppress(FileExistsError):
            os.mkdir(workers)  # noqa: PTH102
        # Again, because processes fork meanwhile. A process outside of our PID namespace is shown as 0.
        while pids := [pid for pid in _read(f"{folder}/cgroup.procs").split() if pid != "0"]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    _write(f"{workers}/cgroup.procs", pid)
    for controller in controllers:
        with suppress(OSError):  # one that can't be passed on must not keep the others
            _write(control, f"+{controller}")


def _try(parent: Parent, controllers: list[str]) -> dict[str, str]:
    """Controller to the problem with it, or to "" if it works in `parent`."""
    if not controllers:
        return {}
    folder = f"{parent.folder}/{_PROBE}{secrets.token_hex(4)}"
    try:
        os.mkdir(folder)  # noqa: PTH102
    except OSError as error:
        return dict.fromkeys(controllers, f"{parent.folder} is not delegated to this process ({error.strerror})")
    try:
        problems = dict.fromkeys(controllers, "")
        for controller in controllers:
            try:
                _limit(folder, parent.version, controller, {"cpu": 0.5, "memory": 2**30, "pids": 64}[controller])
            except OSError as error:
                problems[controller] = f"the limit of {controller} can't be set in {parent.folder} ({error.strerror})"
        joins = ["sh", "-c", 'echo 0 > "$1"', "sh", f"{folder}/cgroup.procs"]
        if subprocess.run(joins, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            problems = dict.fromkeys(controllers, f"no process can join a group in {parent.folder}")
        return problems
    finally:
        _remove(folder, time.monotonic() + _REMOVE_S)


def _limit(folder: str, version: int, controller: str, value: float) -> None:
    """Set the limit of one controller; see `make` for the units."""
    number = str(int(value))
    quota = str(max(1000, int(value * _CPU_PERIOD_US)))  # the kernel's least is 1 ms
    if controller == "pids":
        _write(f"{folder}/pids.max", number)
    elif controller == "cpu" and version == 2:
        _write(f"{folder}/cpu.max", f"{quota} {_CPU_PERIOD_US}")
    elif controller == "cpu":
        _write(f"{folder}/cpu.cfs_period_us", str(_CPU_PERIOD_US))
        _write(f"{folder}/cpu.cfs_quota_us", quota)
    elif version == 2:
        _write(f"{folder}/memory.max", number)
        _write_if_there(f"{folder}/memory.swap.max", "0")
        _write_if_there(f"{folder}/memory.oom.group", "1")
    else:
        both = f"{folder}/memory.memsw.limit_in_bytes"
        with suppress(
            OSError
        ):  # a new group refuses it before the other limit; a group with a lower limit needs it first
            _write_if_there(both, number)
        _write(f"{folder}/memory.limit_in_bytes", number)
        _write_if_there(both, number)


def _remove(folder: str, end: float) -> None:
    pause = 0.001
    while True:
        try:
            return os.rmdir(folder)  # noqa: PTH106
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise SandboxError("not_removed", f"the group {folder} can't be removed: {error.strerror}") from error
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _unescaped(field: str) -> str:
    r"""A path as mountinfo has it: a space is `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _pairs(path: str) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in _read(path).splitlines())}


def _read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123 - paths are text here
        return file.read()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _write_if_there(path: str, text: str) -> None:
    """For files that a kernel may lack. Without swap accounting there is no limit for swap."""
    with suppress(FileNotFoundError):
        _write(path, text)
