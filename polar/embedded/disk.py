"""Room on the disk of a data folder: a full one ends Kafka, so it is looked at before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from topics.types.errors import NotReady

MIB = 1024 * 1024
NEEDED = 512 * MIB
"""Kafka preallocates 10 MB indexes for its partitions' segments and keeps every call for a week; below this it won't last an hour."""
COMFORTABLE = 4096 * MIB
FULL = 64 * MIB
"""A new segment of each partition wants 20 MiB of indexes: with less than this a broker that starts dies again."""


def free(folder: Path) -> int:
    """Bytes that are free where this folder is, or will be."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def is_full(folder: Path) -> bool:
    """Whether there is too little room for a broker to go on."""
    return free(folder) < FULL


def require(folder: Path) -> None:
    """Raises NotReady where the disk is all but full."""
    left = free(folder)
    if left < NEEDED:
        raise NotReady(
            f"only {left // MIB} MB are free on the disk of {folder}, and Kafka needs {NEEDED // MIB} MB to start with; "
            "make room, or choose another data folder (--data)"
        )
