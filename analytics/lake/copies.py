"""Copies of a bucket's Parquet files on this host, in a folder for each table. Drafts of files that are to be uploaded lie there as well.

Invariant: a copy has its whole size when it appears, and stays while the mark of a reader that was there before it was last used lasts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from analytics.lake import locks
from topics.types.errors import NotReadyError

MOST_BYTES = 16 * 1024**3
"""The copies that were used the longest time ago are deleted beyond this size, unless a query may use them."""
RECENT_S = 600.0
"""A copy or draft that was used so lately isn't deleted."""


class Copies:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers = folder / "readers"

    def missing(self, table: str, sizes: Mapping[str, int]) -> list[str]:
        """The files, by name and size in bytes, without a whole copy. The copies of the others count as used now."""
        (self._folder / table).mkdir(parents=True, exist_ok=True)
        return [name for name, size in sizes.items() if not _is_there(self._folder / table / name, size)]

    def make_room(self, needed: int) -> None:
        """Delete old copies before `needed` bytes of new ones come. Raises NotReadyError if these don't fit on the disk."""
        self.evict(max(MOST_BYTES - needed, 0))
        if needed > (free := shutil.disk_usage(self._folder).free):
            raise NotReadyError(
                f"the query needs copies of {needed / 1e9:.1f} GB of the lake's files in {self._folder}, whose disk has "
                f"{free / 1e9:.1f} GB free: make room, name another data folder (--data), or query fewer views"
            )

    def evict(self, most_bytes: int | None = None) -> None:
        """Delete the oldest copies beyond `most_bytes` (default: MOST_BYTES), and parts of copies that dead processes have left."""
        most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        marks = [self._readers / name for name in locks.living(self._readers)]
        used_before = min([time.time() - RECENT_S, *(at for at in map(_used_at, marks) if at is not None)])
        found = sorted(
            (used_at, path.stat().st_size, path)
            for path in self._folder.glob("*/*.parquet*")
            if (used_at := _used_at(path)) is not None
        )
        size = sum(one[1] for one in found)
        for used_at, bytes_, path in found:
            is_part = path.name.startswith(".")
            if used_at < used_before and (size > most_bytes or is_part):
                path.unlink(missing_ok=True)
                size -= bytes_


def _is_there(path: Path, size: int) -> bool:
    """Whether there is a whole copy. It counts as used now."""
    try:
        os.utime(path)
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _used_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None
