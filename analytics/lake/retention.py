"""Removes what is old from the lake: tasks that nothing was written about for long, and heartbeats and dead letters of that age.

A task goes whole, with the rows of all its sessions in all tables: views join tables, so half a session would be worse than none. What
trainers published stays, because calls name it, and so do the offsets: nothing is read from Kafka again. One commit removes all of it. The
old files are deleted like merged ones (`compaction.py`), once no reader needs them. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.lake.compaction import write_merged
from analytics.lake.manifest import ConflictError, File, Lake, Manifest, Writing
from analytics.lake.schema import TABLES

OF_TASKS = tuple(name for name, table in TABLES.items() if "task_id" in table.arrow.names)
BY_AGE = ("heartbeats", "dead_letters", "dead_letter_replays")
"""Tables whose rows go one by one."""
Announce = Callable[[str], None]
"""Gets a sentence about the progress, after each file."""


class Removed(NamedTuple):
    """Rows that were removed from a table, or would be."""

    rows: int
    bytes: int
    """By which the table's files are smaller."""


def old_tasks(lake: Lake, newest: Manifest, before_ms: int) -> set[str]:
    """The tasks whose newest row in any table is older than `before_ms`, Unix ms. Raises OSError."""
    last: dict[str, int] = {}
    for table in OF_TASKS:
        for file in newest.files.get(table, ()):
            with lake.open(table, file) as opened:
                read = pq.read_table(opened, columns=["task_id", "logged_at"])
            found = read.group_by("task_id").aggregate([("logged_at", "max")])
            times = found["logged_at_max"].cast(pa.int64()).to_pylist()
            for task_id, at in zip(found["task_id"].to_pylist(), times, strict=True):
                if task_id is not None:
                    last[task_id] = max(last.get(task_id, 0), at or 0)
    return {task_id for task_id, at in last.items() if at < before_ms}


def old_rows(lake: Lake, before_ms: int, announce: Announce = lambda _: None) -> dict[str, Removed]:
    """Count by table the rows that `expire` would remove; `bytes` are estimated by each file's share of such rows. Raises OSError."""
    with lake.pin() as newest:
        keeps = _Keeps(lake, newest, before_ms)
        found = dict.fromkeys(TABLES, Removed(0, 0))
        for table, file in _looking_through(newest, announce):
            old = file.rows - keeps.count(table, file)
            found[table] = Removed(found[table].rows + old, found[table].bytes + file.bytes * old // max(file.rows, 1))
        return {table: removed for table, removed in found.items() if removed.rows}


def expire(lake: Lake, writing: Writing, before_ms: int, *, announce: Announce = lambda _: None) -> dict[str, Removed]:
    """Remove what is older than `before_ms`, Unix ms, and return by table what was removed.

    Writers, merges and readers go on meanwhile. Raises OSError.
    """
    with lake.pin() as newest:
        replacements = _Replacements(lake, writing, _Keeps(lake, newest, before_ms))
        committed: Manifest | None = None
        try:
            while True:
                replacements.look_through(newest, announce)
                made = {table: found for table in TABLES if (found := replacements.of(newest, table))}
                if made:
                    try:
                        committed = lake.commit(newest, _with(newest, made))
                    except ConflictError:  # a writer has added files, or others were merged
                        newest = lake.newest()
                        continue
                return {table: _removed(found) for table, found in made.items()}
        finally:
            replacements.discard(committed)


def _looking_through(newest: Manifest, announce: Announce) -> Iterator[tuple[str, File]]:
    """A manifest's files that may have old rows, with their tables. Announces each once it was used."""
    files = [(table, file) for table in (*OF_TASKS, *BY_AGE) for file in newest.files.get(table, ())]
    for number, found in enumerate(files, start=1):
        yield found
        announce(f"{number} of {len(files)} files of the lake are looked through")


class _Keeps:
    """Which rows stay. The old tasks are those of one manifest: a task that is written about meanwhile goes up to there."""

    def __init__(self, lake: Lake, newest: Manifest, before_ms: int) -> None:
        self._lake = lake
        self._before_ms = before_ms
        self._tasks = pa.array(sorted(old_tasks(lake, newest, before_ms)), pa.string())

    def count(self, table: str, file: File) -> int:
        """The rows of a file that stay. Raises OSError."""
        column = "logged_at" if table in BY_AGE else "task_id"
        with self._lake.open(table, file) as opened:
            return pc.sum(self.each(table, pq.read_table(opened, columns=[column]))).as_py() or 0

    def each(self, table: str, rows: Any) -> Any:
        """For a pyarrow Table: whether each row stays."""
        if table in BY_AGE:
            return pc.greater_equal(rows["logged_at"].cast(pa.int64()), self._before_ms)
        return pc.invert(pc.is_in(rows["task_id"], value_set=self._tasks))


class _Replacements:
    """For each file of the lake that was looked through and has old rows: the file of its other rows, None if it has none."""

    def __init__(self, lake: Lake, writing: Writing, keeps: _Keeps) -> None:
        self._lake = lake
        self._writing = writing
        self._keeps = keeps
        self._seen: set[tuple[str, File]] = set()
        self._made: dict[str, dict[File, File | None]] = {table: {} for table in TABLES}

    def of(self, newest: Manifest, table: str) -> dict[File, File | None]:
        """Those of a manifest's files, which were looked through."""
        there = set(newest.files.get(table, ()))
        return {old: new for old, new in self._made[table].items() if old in there}

    def look_through(self, newest: Manifest, announce: Announce) -> None:
        """Write and publish replacements for a manifest's files that weren't looked through yet. Raises OSError."""
        written: dict[str, list[str]] = {}
        for table, file in _looking_through(newest, announce):
            if (table, file) in self._seen:
                continue
            new = self._replacement(table, file)
            self._seen.add((table, file))
            if new != file:
                self._made[table][file] = new
            if new is not None and new != file:
                written.setdefault(table, []).append(new.name)
        self._lake.publish(written)

    def discard(self, committed: Manifest | None) -> None:
        """Remove the files that this manifest doesn't name; None: none was committed."""
        for table, made in self._made.items():
            part = {file.name for file in committed.files.get(table, ())} if committed else set()
            self._lake.discard(table, {new.name for new in made.values() if new is not None} - part)

    def _replacement(self, table: str, file: File) -> File | None:
        """A file of the rows that stay; the file itself if all do."""
        kept = self._keeps.count(table, file)
        if kept == file.rows:
            return file
        if kept == 0:
            return None
        path = self._lake.folder / table / self._writing.new_name()
        source = partial(self._lake.open, table, file)
        try:
            write_merged(
                path, [source], TABLES[table].arrow, keep=lambda rows: rows.filter(self._keeps.each(table, rows))
            )
        except BaseException:
            path.unlink(missing_ok=True)  # a part of a file is no use, and the disk may be full
            raise
        return File(path.name, kept, path.stat().st_size)


def _with(newest: Manifest, made: Mapping[str, Mapping[File, File | None]]) -> Manifest:
    """The manifest with its files of old rows replaced."""
    for table, found in made.items():
        newest = newest.replaced(table, list(found), [new for new in found.values() if new is not None])
    return newest


def _removed(made: Mapping[File, File | None]) -> Removed:
    rows = sum(old.rows - (new.rows if new else 0) for old, new in made.items())
    size = sum(old.bytes - (new.bytes if new else 0) for old, new in made.items())
    return Removed(rows, size)
