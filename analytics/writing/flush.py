"""Commits rows and offsets to the lake atomically.

1. Write, sync and publish a file for each table. 2. Commit the next manifest if the newest has the expected offsets of our partitions.
Losing a race against other commits is no failure; changed offsets of our partitions are. Blocking: run it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import structlog

from analytics.lake import files
from analytics.lake.manifest import ConflictError, File, Lake, Manifest, OtherClusterError, Partition, Writing
from analytics.lake.rows import Row
from analytics.lake.schema import TABLES
from topics.log.last_read import LastRead

log = structlog.get_logger()


class SupersededError(Exception):
    """Another writer has committed our partitions: drop the rows in memory and continue from the newest manifest."""


def flush(
    lake: Lake,
    writing: Writing,
    rows: Mapping[str, Sequence[Row]],
    base: Mapping[Partition, int | None],
    offsets: Mapping[Partition, int],
    last: Mapping[Partition, LastRead] = MappingProxyType({}),
    cluster: str = "",
) -> int:
    """Commit rows read from `base` to `offsets`, where `last` were read last, of a Kafka cluster; returns how many rows fitted no column
    and were left out.

    Raises SupersededError, OtherClusterError, and OSError if nothing was committed. If the disk failed after the last step, or the answer
    of a bucket was lost, everything was committed, and the next try raises SupersededError.
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
        lake.publish({name: [file.name for file in made] for name, made in added.items()})
        while True:
            newest = lake.newest()
            lake.require_cluster(newest, cluster or newest.cluster)
            _check(newest, base)
            with suppress(ConflictError):
                lake.commit(newest, newest.advanced(offsets, added, last, cluster))
                return unfit
    except (OSError, SupersededError, OtherClusterError):
        for name, made in added.items():
            lake.discard(name, (file.name for file in made))
        raise


def _check(newest: Manifest, base: Mapping[Partition, int | None]) -> None:
    for (topic, number), known in base.items():
        if (found := newest.offset((topic, number))) != known:
            raise SupersededError(f"{topic}[{number}] is at {found}, not at {known}")
