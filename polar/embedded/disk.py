"""Free space on the disk of a data folder. Kafka dies on a full disk, so `polar up` checks it before it starts anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from topics.types.errors import NotReadyError

MIB = 1024 * 1024
NEEDED = 512 * MIB
"""Kafka preallocates 10 MB indexes for its partitions' segments and keeps every call for a week; with less it would not last an hour."""
COMFORTABLE = 4096 * MIB
"""Below this `polar doctor` adds that the space is enough for small runs only."""
FULL = 64 * MIB
"""A new segment of each partition needs 20 MiB of indexes; with less than this a restarted broker dies again."""


def free(folder: Path) -> int:
    """Free bytes on the disk that holds, or will hold, the folder."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def is_full(folder: Path) -> bool:
    """Whether a broker would die for lack of space."""
    return free(folder) < FULL


def obstacle(folder: Path) -> str | None:
    """Why a broker can't write there, as the rest of a sentence, and what to do; None if it can."""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f"the disk of {folder} is read-only. Mount it writable"
    return f"the disk of {folder} is full. Make room" if is_full(folder) else None


def require(folder: Path) -> None:
    """Raise NotReadyError if fewer than `NEEDED` bytes are free."""
    left = free(folder)
    if left < NEEDED:
        raise NotReadyError(
            f"only {left // MIB} MB are free on the disk of {folder}, and Kafka needs {NEEDED // MIB} MB to start with; "
            "make room, or choose another data folder (--data)"
        )
