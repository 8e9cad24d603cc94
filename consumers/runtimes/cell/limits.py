"""The limits of one session's programs: how this host enforces each, and which it can't enforce.

| limit | with a cgroup (v2 or v1) | without |
|---|---|---|
| `cpus` | cgroup: CPU time of all programs in 100 ms; they wait | not enforced |
| `memory_mb` | cgroup: all programs, caches, tmpfs, swap; the kernel kills | RLIMIT_DATA: each process, 4 GB or more; allocations fail |
| `pids` | cgroup: processes and threads of all programs; forks fail | RLIMIT_NPROC: as with a cgroup, but of each program by itself |
| `storage_mb` | watch: the session ends; RLIMIT_FSIZE: one file, writes fail | the same |
| `files` | RLIMIT_NOFILE: each process by itself; opens fail | the same |

The kernel enforces all but `storage_mb`. Programs can't raise a limit: rlimits are hard limits, and the cgroup file system isn't in a cell.
At the limit of `memory_mb` v2 kills all programs of the session, and v1 only one process, so the harness may continue. Swap is limited if
the kernel accounts for it.

Without a memory cgroup, the limit is RLIMIT_DATA. RLIMIT_AS would also count address space that runtimes only reserve: with 4 GB, node 20
can't make its first WebAssembly memory. RLIMIT_DATA counts writable private memory, used or not, of which node 24 reserves 512 MB for each
thread that runs JavaScript. It is therefore never below DATA_LEAST_MB. A program with many processes, and every program that writes to
shared memory or tmpfs, gets more than `memory_mb`. So a host without cgroups can run out of memory.

RLIMIT_NPROC counts the processes of a user id in a user namespace. Since Linux 5.14 they count in each namespace above as well, where the
limit holds that the creator had at the creation. So a program must have its own user id or user namespace *before* the limit is set. Set
before the namespace is made, the limit would count all of the user's processes on the host. User id 0 of the host is never limited. With
a privileged worker, whose sessions have user ids of their own, all programs of a session count together.

RLIMIT_NOFILE is at most half of the worker's own soft limit, or FILES_LEAST. The kernel counts the descriptors that a user's processes have
sent and not yet received, and lets nobody send who has a lower limit than that count. So sessions of the worker's user can't keep it from
sending, unless its own limit is FILES_LEAST or less.

cgroups are in `cgroup`, and the watch is `storage`.
"""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from consumers.runtimes.cell import cgroup
from consumers.runtimes.cell.cgroup import Group

PIDS = 4096
"""Default `pids`. A build on a large machine has hundreds of processes, a JVM has hundreds of threads; a host has tens of thousands."""
MEMORY_SHARE = 0.75
"""Default `memory_mb`, as a share of the memory that this process may use: the rest keeps the worker, Kafka and the kernel alive."""
STORAGE_MB = 10_240
"""Default `storage_mb`. A large repository with its dependencies and build output takes 1 to 5 GB."""
FILES = 65_536
"""Default `files`. Docker's and systemd's usual limits are this or more, and no tool of an agent needs as many."""
FILES_LEAST = 1024
"""The least RLIMIT_NOFILE that is chosen because the worker's own is low: an agent's CLI opens hundreds of files when it starts."""
DATA_LEAST_MB = 4096
"""The least RLIMIT_DATA: enough for node 24 with six threads."""

_MB = 1024 * 1024
_MEMORY_INFO = "/proc/meminfo"
_OWN_NAMESPACE_COUNTS = """
import ctypes, os, resource
if ctypes.CDLL(None).unshare(0x10000000) != 0: os._exit(1)
resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
if os.fork() == 0: os._exit(0)
"""
"""Exits with 0 if processes in a new user namespace are counted by themselves: with it, its parent and its child the user has three."""
_PROBE_S = 10.0


@dataclass(frozen=True)
class Limits:
    """The limits of a session. None: the default, see `filled`."""

    cpus: float | None = None
    memory_mb: int | None = None
    """In MiB."""
    pids: int | None = None
    """Processes and threads."""
    storage_mb: int | None = None
    """In MiB: what all files of the session's folder occupy on disk."""
    files: int | None = None
    """Open files of one process."""


class Means(StrEnum):
    """What enforces a limit."""

    CGROUP2 = "cgroup2"
    CGROUP1 = "cgroup1"
    RLIMIT = "rlimit"
    WATCH = "watch"
    NONE = "none"


@dataclass(frozen=True)
class Host:
    """The means of this host, by limit, and the reason for each limit that isn't enforced, or only in part."""

    cgroups: cgroup.Found
    means: Mapping[str, Means]
    reasons: Mapping[str, str]
    memory_bytes: int
    """What this process may use: the machine's memory, or the smallest limit of a group that it is in."""

    def unenforced(self, limits: Limits) -> dict[str, str]:
        """Limit to one sentence, for each limit that a session with `limits` has and that isn't enforced, or only in part."""
        return {name: reason for name, reason in self.reasons.items() if getattr(self.filled(limits), name) is not None}

    def filled(self, limits: Limits) -> Limits:
        """`limits` with a default for each that is None, so that no session can take the whole host. `cpus` stays: programs share."""
        return Limits(
            cpus=limits.cpus,
            memory_mb=limits.memory_mb or int(self.memory_bytes * MEMORY_SHARE) // _MB,
            pids=limits.pids or PIDS,
            storage_mb=limits.storage_mb or STORAGE_MB,
            files=limits.files or FILES,
        )

    def group(self, name: str, limits: Limits) -> Group:
        """Make the group of the session `name`, or set the limits of the existing group. Without cgroups it has no paths to join.

        Raises SandboxError `not_started`.
        """
        wanted = self.filled(limits)
        assert wanted.memory_mb is not None
        return cgroup.make(
            name,
            self.cgroups.parents,
            {"cpu": wanted.cpus, "memory": wanted.memory_mb * _MB, "pids": wanted.pids},
        )

    def rlimits(self, limits: Limits) -> list[tuple[int, int]]:
        """Pairs for `resource.setrlimit(pair[0], (pair[1], pair[1]))` in the forked child, as its last step before it executes the program
        and after it has got its own user id or user namespace. A value above our own hard limit is cut to it."""
        wanted = self.filled(limits)
        assert wanted.memory_mb is not None
        assert wanted.pids is not None
        assert wanted.storage_mb is not None
        assert wanted.files is not None
        values = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: min(
                wanted.files, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, FILES_LEAST)
            ),
            resource.RLIMIT_FSIZE: wanted.storage_mb * _MB,
        }
        if self.means["memory_mb"] is Means.RLIMIT:
            values[resource.RLIMIT_DATA] = max(wanted.memory_mb, DATA_LEAST_MB) * _MB
        if self.means["pids"] is Means.RLIMIT:
            values[resource.RLIMIT_NPROC] = wanted.pids
        return [(which, _within_hard(which, value)) for which, value in values.items()]


@functools.cache
def host() -> Host:
    """The means of this host, probed once in a process. In cgroup v2 this may move processes to another group, see `cgroup`."""
    return probe()


def probe(mounts: str = "/proc/self/mountinfo") -> Host:
    """Try every means; takes about 10 ms, and 30 ms without cgroups. `mounts`: the file in which to look for mounted cgroups."""
    found = cgroup.find(mounts)
    version = {1: Means.CGROUP1, 2: Means.CGROUP2}
    means = dict.fromkeys(("cpus", "memory_mb", "pids"), Means.NONE)
    for name, controller in (("cpus", "cpu"), ("memory_mb", "memory"), ("pids", "pids")):
        if parent := found.parents.get(controller):
            means[name] = version[parent.version]
    reasons = {}
    if means["cpus"] is Means.NONE:
        reasons["cpus"] = f"Programs can use all CPUs: {found.reasons['cpu']}."
    if means["memory_mb"] is Means.NONE:
        means["memory_mb"] = Means.RLIMIT
        reasons["memory_mb"] = (
            f"Each process may allocate memory_mb, and at least {DATA_LEAST_MB} MB; their sum and shared memory are not limited: "
            f"{found.reasons['memory']}."
        )
    if means["pids"] is Means.NONE and _processes_are_counted_apart():
        means["pids"] = Means.RLIMIT
    elif means["pids"] is Means.NONE:
        reasons["pids"] = (
            f"The number of processes isn't limited: {found.reasons['pids']}, and user namespaces aren't counted apart."
        )
    means |= {"storage_mb": Means.WATCH, "files": Means.RLIMIT}
    return Host(found, means, reasons, min(_machine_memory(), cgroup.memory_ceiling(mounts) or sys.maxsize))


def _processes_are_counted_apart() -> bool:
    """Whether RLIMIT_NPROC can count one session: by its user id if we are privileged, otherwise by its user namespace."""
    if os.geteuid() == 0:
        return True
    argv = [sys.executable, "-I", "-S", "-c", _OWN_NAMESPACE_COUNTS]
    try:
        return subprocess.run(argv, stderr=subprocess.DEVNULL, timeout=_PROBE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _machine_memory() -> int:
    with open(_MEMORY_INFO) as file:  # noqa: PTH123 - one line of a kernel's file
        return int(next(line for line in file if line.startswith("MemTotal:")).split()[1]) * 1024


def _within_hard(which: int, value: int) -> int:
    hard = resource.getrlimit(which)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
