"""Keeps the lake small: merges small files, and removes files that no reader can need.

Merging goes by size. If a tier (sizes up to eight times those of the tier below) has eight files, they and all smaller files become one. So
a row is rewritten once per tier, and never beyond 128 MiB. Removing goes by version: manifests, the oldest first, up to the first one that
a live reader has pinned or that was the newest within the grace period, and the files that only removed manifests contain. Invariant: no
row is lost or doubled, and no file of a pinned, recent or future manifest is removed. One process of a host at a time; processes of several
hosts with a lake in a bucket may do the same work twice, and one of them commits it. Blocking.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from analytics.lake import files, locks
from analytics.lake.manifest import ConflictError, File, Lake, Manifest, Writing
from analytics.lake.schema import TABLES
from topics.contract.topic import MIB

TARGET_BYTES = 128 * MIB
FAN_IN = 8
TIER_BITS = 3
"""A tier's files are up to eight times as large as those of the one below."""
GROUP_BYTES = 32 * MIB
"""Size in memory of a merged file's row group."""
GRACE_S = 600.0
"""For readers without a pin: queries of the DuckDB file, and copying from a bucket, may take this long."""

LOCK = "compaction.lock"
"""File of the lake's folder, locked by the process that replaces files."""

log = structlog.get_logger()


def tidy(lake: Lake, writing: Writing, halt: threading.Event, grace_s: float = GRACE_S) -> None:
    """Remove unneeded files, then merge small ones, unless another process does it. Ends soon after `halt`. Raises OSError."""
    with locks.alone(lake.folder / LOCK) as is_alone:
        if not is_alone:
            return
        with suppress(FileNotFoundError):  # a manifest that a process of another host has removed first
            prune(lake, grace_s)
        newest = lake.newest()
        for table in TABLES:
            while not halt.is_set() and (chosen := choose(newest.files.get(table, []))):
                is_merged = merge(lake, writing, table, chosen, halt)
                # After a merge Arrow keeps a hundred megabytes of freed memory, much for this process.
                pa.default_memory_pool().release_unused()
                if not is_merged:
                    break
                newest = lake.newest()


def choose(there: Sequence[File]) -> list[File]:
    """The files of a table to merge into one, smallest first; none if they are few."""
    small = sorted((file for file in there if file.bytes < TARGET_BYTES), key=lambda file: file.bytes)
    upto = 0
    for _, tier in itertools.groupby(small, lambda file: file.bytes.bit_length() // TIER_BITS):
        members = len(list(tier))
        upto += members
        if members >= FAN_IN:
            break
    else:
        return []
    sizes = itertools.accumulate(file.bytes for file in small[:upto])
    enough = next((count for count, size in enumerate(sizes, 1) if size >= TARGET_BYTES), upto)
    return small[:enough]


def merge(lake: Lake, writing: Writing, table: str, chosen: Sequence[File], halt: threading.Event) -> bool:
    """Replace several files by one; False if it was cancelled or a file is gone. Raises OSError."""
    path = lake.folder / table / writing.new_name()
    is_part = False
    try:
        if write_merged(path, [partial(lake.open, table, file) for file in chosen], TABLES[table].arrow, halt):
            file = File(path.name, sum(file.rows for file in chosen), path.stat().st_size)
            lake.publish({table: [path.name]})
            is_part = _replace(lake, table, chosen, file)
    finally:
        if not is_part:
            lake.discard(table, [path.name])
    if is_part:
        log.info("files merged", action="analytics.merged", table=table, files=len(chosen), rows=file.rows)
    return is_part


def _replace(lake: Lake, table: str, chosen: Sequence[File], file: File) -> bool:
    while True:
        newest = lake.newest()
        there = set(newest.files.get(table, ()))
        if not there.issuperset(chosen):
            return file in there
        with suppress(ConflictError):
            lake.commit(newest, newest.replaced(table, chosen, [file]))
            return True


def write_merged(
    path: Path,
    sources: Sequence[Callable[[], Any]],
    schema: Any,
    halt: threading.Event | None = None,
    keep: Callable[[Any], Any] | None = None,
) -> bool:
    """Write the rows of all sources, synced, including columns of newer writers. False if halted. `sources`: each opens a Parquet file.
    `keep`: from a pyarrow Table to the rows of it to write; None: all.
    """
    schema = pa.unify_schemas([schema, *map(_schema, sources)])
    with path.open("xb") as out:
        with pq.ParquetWriter(out, schema, **files.options(schema)) as writer:
            for group in _groups(sources):
                if halt is not None and halt.is_set():
                    return False
                whole = pa.concat_tables([schema.empty_table(), *group], promote_options="default")
                if keep is not None:
                    whole = keep(whole)
                writer.write_table(whole, row_group_size=len(whole))
        out.flush()
        os.fsync(out.fileno())
    return True


def _schema(source: Callable[[], Any]) -> Any:
    with source() as file:
        return pq.read_schema(file)


def _groups(sources: Sequence[Callable[[], Any]]) -> Iterator[list[Any]]:
    """Batches of row groups, each of about `GROUP_BYTES`."""
    batch: list[Any] = []
    for source in sources:
        with source() as opened, pq.ParquetFile(opened) as file:
            for number in range(file.num_row_groups):
                batch.append(file.read_row_group(number))
                if sum(group.nbytes for group in batch) >= GROUP_BYTES:
                    yield batch
                    batch = []
    if batch:
        yield batch


def prune(lake: Lake, grace_s: float) -> None:
    """Remove manifests and files that no reader can need, and uncommitted files of dead writers. Raises OSError."""
    # Versions first, marks second: a reader that pins later pins the newest of these versions or a newer one.
    versions = lake.versions()
    pinned = min((int(text or 0) for text in locks.living(lake.readers).values()), default=None)
    past = itertools.takewhile(lambda pair: _is_past(lake, *pair, grace_s, pinned), itertools.pairwise(versions))
    doomed = [version for version, _ in past]
    if doomed:
        # A file is in consecutive manifests: if it isn't in this one, it is in no later one.
        kept = _named(lake, [versions[len(doomed)]])
        for version in doomed:
            _remove(lake, _named(lake, [version]) - kept)
            lake.remove(version)
    locks.living(lake.writers, lambda name: _bury(lake, name))
    lake.store.clean()
    _sweep(lake)


def _is_past(lake: Lake, version: int, successor: int, grace_s: float, pinned: int | None) -> bool:
    """Whether no reader uses this version, pinned or not."""
    if pinned is not None and version >= pinned:
        return False
    # abs: after a clock that ran ahead is corrected, old manifests must not be kept until it catches up.
    return abs(time.time() - lake.read(successor).committed_at / 1000) > grace_s


def _named(lake: Lake, versions: Sequence[int]) -> set[tuple[str, str]]:
    """Tables and names of the files of some manifests."""
    return {pair for version in versions for pair in _of(lake.read(version))}


def _of(manifest: Manifest) -> Iterator[tuple[str, str]]:
    return ((table, file.name) for table, made in manifest.files.items() for file in made)


def _remove(lake: Lake, doomed: Set[tuple[str, str]]) -> None:
    for table in sorted({table for table, _ in doomed}):
        lake.store.remove(table, [name for of, name in doomed if of == table])


def _bury(lake: Lake, writer: str) -> None:
    """Remove a dead writer's files that are in no manifest: it can't commit them any more."""
    there = {(table, path.name) for table in TABLES for path in (lake.folder / table).glob(f"{writer}-*")}
    for table, name in there:
        lake.store.drop_drafts(table, [name])
    if there:
        _remove(lake, there - _named(lake, lake.versions()))


def _sweep(lake: Lake) -> None:
    """Remove files of writers that died on other hosts. No mark says who lives there, so a commit forbids to commit them any more.

    A commit under way that names one of them finds its number used, and afterwards that `sweeps` has changed since its files were written.
    """
    found = lake.store.unclaimed()
    if not found:
        return
    newest = lake.newest()
    orphans = found.difference(_of(newest))
    if orphans:  # older manifests take a request each
        orphans -= _named(lake, lake.versions())
    if orphans:
        with suppress(ConflictError):  # the next sweep finds them again
            lake.commit(newest, newest.swept())
            _remove(lake, orphans)
            log.info("files of dead writers removed", action="analytics.swept", files=len(orphans))
