"""Finds processes through /proc, by descent or by a mark in their environment, and kills them so that none escapes.

Invariant: when `kill_until_gone` returns an empty set, no process that `find` looks for exists, even if the processes fork, daemonise
and restart one another meanwhile. Callers decide which processes to find.

A mark is a variable that shows everyone who reads /proc which claim a process belongs to. A program gets its marks as variables when
it starts. A forked supervisor has no start of its own, so it writes its marks over the memory that the kernel shows as its
environment, for which `ROOM` is reserved.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping
from signal import SIGKILL, SIGSTOP

ROOM_NAME = "POLAR_ROOM"
ROOM = " " * 1024
"""Enough for two claim ids of 200 characters and their names."""
_ENV_START = 47
"""Index of `env_start` in /proc/self/stat, counted from 0 behind the process's name (proc(5): field 50); `env_end` is the next field."""


def parents() -> dict[int, int]:
    """The parent of every living process. Zombies are left out: they don't run and can't be killed.

    A process whose first thread has ended while others run is shown as a zombie too (proc(5), `state`): it counts as living.
    """
    found = {}
    for pid in _pids():
        try:
            fields = _stat(pid)
        except OSError:
            continue
        state, parent, threads = fields[0], int(fields[1]), int(fields[17])
        if state not in b"ZX" or threads > 1:
            found[pid] = parent
    return found


def descendants(roots: set[int], tree: dict[int, int]) -> set[int]:
    """All processes below `roots` in `tree` (child to parent), without the roots."""
    children: dict[int, list[int]] = {}
    for pid, parent in tree.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    unseen = list(roots)
    while unseen:
        below = [pid for pid in children.get(unseen.pop(), ()) if pid not in found]
        found.update(below)
        unseen.extend(below)
    return found - roots


def marked(name: str, value: str) -> set[int]:
    """Living processes that were started with `name=value` in their environment, and all processes below them.

    Processes of other users are not found: their environment can't be read, and they couldn't be killed.
    """
    mark = f"{name}={value}".encode()
    holders = {pid for pid in _pids() if _holds(pid, mark)}
    if not holders:  # the usual case; the tree is two thirds of the work
        return set()
    tree = parents()
    return ((holders & tree.keys()) | descendants(holders, tree)) - {os.getpid()}


def kill_until_gone(find: Callable[[], set[int]], deadline_s: float) -> set[int]:
    """Kill all that `find` finds until it finds nothing or `deadline_s` has passed; returns the processes that are left.

    All processes are stopped before the first is killed: one that forks faster than we read /proc, or that restarts another after its
    death, would outrun a plain kill. In theory the pid of a process that ends in between could belong to a new process by then, but
    pids would have to wrap around within a millisecond.
    """
    end = time.monotonic() + deadline_s
    pause = 0.001
    while True:
        frozen: set[int] = set()
        while new := find() - frozen:
            for pid in new:
                send(pid, SIGSTOP)
            frozen |= new
            if time.monotonic() > end:
                break
        for pid in frozen:
            send(pid, SIGKILL)
        if not frozen or time.monotonic() > end:
            return frozen
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def show_marks(marks: Mapping[str, str]) -> None:
    """Show `marks` as this process's environment. ValueError if there is no room for them."""
    fields = _stat("self")
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    shown = b"".join(f"{name}={value}".encode() + b"\0" for name, value in marks.items())
    if len(shown) > end - start:
        raise ValueError(f"no room for {len(shown)} bytes of marks in {end - start}")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))


def _stat(pid: int | str) -> list[bytes]:
    """The fields of /proc/<pid>/stat behind the name. The name is in parentheses and may hold anything, parentheses and spaces too."""
    with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the cost
        return file.read().rpartition(b")")[2].split()


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - as above


def _holds(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
            environment = file.read()
    except OSError:
        return False
    return mark in environment and mark in environment.split(b"\0")


def send(pid: int, number: int) -> None:
    """Send a signal; no error if the process has ended or is another user's."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
