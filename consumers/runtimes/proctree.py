"""Finds processes through /proc, by descent or by a mark in their environment, and kills them so that none escapes.

Owns the killing. Its promise: when `kill_until_gone` returns an empty set, what `find` looks for does not exist any more, though
the processes fork, daemonise and restart one another meanwhile. Leaves to others what to look for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from signal import SIGKILL, SIGSTOP


def parents() -> dict[int, int]:
    """The parent of every living process. Zombies are left out: nothing of them runs, and they can't be killed.

    A process whose first thread has ended while others run is shown as a zombie, too (proc(5), `state`): it counts as living.
    """
    found = {}
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would double the cost
                # The name stands in parentheses and may hold anything, parentheses and spaces too.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        state, parent, threads = fields[0], int(fields[1]), int(fields[17])
        if state not in b"ZX" or threads > 1:
            found[pid] = parent
    return found


def descendants(roots: set[int], tree: dict[int, int]) -> set[int]:
    """All below `roots` in `tree` (child to parent), the roots themselves left out."""
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
    """Living processes that were started with `name=value` in their environment, and all below them.

    Those of other users are not seen: their environment can't be read, nor could they be killed.
    """
    mark = f"{name}={value}".encode()
    holders = {pid for pid in _pids() if _holds(pid, mark)}
    if not holders:  # mostly; the tree is two thirds of the work
        return set()
    tree = parents()
    return ((holders & tree.keys()) | descendants(holders, tree)) - {os.getpid()}


def kill_until_gone(find: Callable[[], set[int]], deadline_s: float) -> set[int]:
    """Kill all that `find` finds until it finds nothing, or `deadline_s` has passed; returns what is left then.

    All are stopped before the first is killed: a process that forks faster than we read /proc, or that waits for another's
    death to start it anew, would outrun a plain kill. The pid of one that ends in between could in theory be another's by then;
    it would have to come round within a millisecond.
    """
    end = time.monotonic() + deadline_s
    pause = 0.001
    while True:
        frozen: set[int] = set()
        while new := find() - frozen:
            for pid in new:
                _signal(pid, SIGSTOP)
            frozen |= new
            if time.monotonic() > end:
                break
        for pid in frozen:
            _signal(pid, SIGKILL)
        if not frozen or time.monotonic() > end:
            return frozen
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - as above


def _holds(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
            environment = file.read()
    except OSError:
        return False
    return mark in environment and mark in environment.split(b"\0")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
