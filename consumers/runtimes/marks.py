"""The marks of a process: what of its environment tells, from outside and to whoever looks at /proc, whose it is.

A program gets its marks as variables when it starts. A forked supervisor has no start of its own, so it writes them over the memory
that the kernel shows as its environment: `ROOM` is there for that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

ROOM_NAME = "POLAR_ROOM"
ROOM = " " * 1024
"""Two claim ids of 200 characters and their names, generously."""
_ENV_START = 47
"""Of the fields of /proc/self/stat behind the name, from 0 (proc(5): 50); the next is the end."""


def bear(marks: Mapping[str, str]) -> None:
    """Show `marks` as this process's environment. ValueError where there is no room for them."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - no reason to load pathlib
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    shown = b"".join(f"{name}={value}".encode() + b"\0" for name, value in marks.items())
    if len(shown) > end - start:
        raise ValueError(f"no room for {len(shown)} bytes of marks in {end - start}")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, shown, len(shown))
