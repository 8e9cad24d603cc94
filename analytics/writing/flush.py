"""Rows and offsets into the lake, together or not at all: the one step that makes what was read part of it.

1. A file for each table, synced. 2. The next manifest, over the newest, where that has our partitions as we know them. Losing a race
against others' commits is no failure; finding our own partitions moved is. Blocking: run it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import structlog

from analytics.lake import files
from analytics.lake.manifest import Conflict, File, Lake, Manifest, Partition, Writing, sync
from analytics.lake.rows import Row
from analytics.lake.schema import TABLES

log = structlog.get_logger()


class Superseded(Exception):  # noqa: N818 - named for what happened
    """Another has committed our partitions: what we hold of them is void, the newest manifest says where to go on."""


def flush(
    lake: Lake,
    writing: Writing,
    rows: Mapping[str, Sequence[Row]],
    base: Mapping[Partition, int | None],
    offsets: Mapping[Partition, int],
    times: Mapping[Partition, int] = MappingProxyType({}),
) -> int:
    """Commit rows, read from `base` to `offsets`, the newest record of `times`; how many fitted no column and were left out.

    Raises Superseded; OSError, and then nothing of it is in the lake, or, where the disk failed after the very last step, all of it,
    which the next try finds out as Superseded.
    """
    added: dict[str, list[File]] = {}
    unfit = 0
    try:
        for name, kept in rows.items():
            made, bad = files.arrow(TABLES[name], kept)
            unfit += len(bad)
            for row in bad:
                at = f"{row['log_partition']}@{row['log_offset']}"
                log.warning("a value fits no column", action="analytics.unfit", table=name, at=at)
            if len(made):
                file = writing.new_name()
                added[name] = [File(file, len(made), files.write(lake.folder / name / file, made))]
        for name in added:
            sync(lake.folder / name)
        _commit(lake, base, lambda newest: newest.advanced(offsets, added, times))
    except (OSError, Superseded):
        for name, made in added.items():
            lake.discard(name, (file.name for file in made))
        raise
    return unfit


def _commit(lake: Lake, base: Mapping[Partition, int | None], advanced: Callable[[Manifest], Manifest]) -> None:
    while True:
        newest = lake.newest()
        for partition, known in base.items():
            if newest.offset(partition) != known:
                raise Superseded(f"{partition[0]}[{partition[1]}] is at {newest.offset(partition)}, not at {known}")
        with suppress(Conflict):
            lake.commit(newest, advanced(newest))
            return
