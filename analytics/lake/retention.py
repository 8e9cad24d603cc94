"""Removes what is old from the lake: tasks that nothing was written about for long, and heartbeats and dead letters of that age.

A task goes whole, with the rows of all its sessions in all tables: views join tables, so half a session would be worse than none. What
trainers published stays, because calls name it, and so do the offsets: nothing is read from Kafka again. One commit removes all of it. The
old files are deleted like merged ones (`compaction.py`), once no reader needs them. Blocking.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.lake import locks
from analytics.lake.compaction import LOCK, write_merged
from analytics.lake.manifest import ConflictError, File, Lake, Manifest, Writing, sync
from analytics.lake.schema import TABLES
from topics.types.errors import NotReadyError

OF_TASKS = tuple(name for name, table in TABLES.items() if "task_id" in table.arrow.names)
BY_AGE = ("heartbeats", "dead_letters", "dead_letter_replays")
"""Tables whose rows go one by one."""
MERGE_S = 600.0
"""For a merge of files that is under way."""
LOOK_S = 0.5
"""Between two looks whether it has ended."""

Announce = Callable[[str], None]
"""Gets a sentence about the progress, after each file and each look."""


class Change(NamedTuple):
    """One file of a table, and what takes its place."""

    old: File
    new: File | None
    """None: all of its rows are old."""


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
            read = pq.read_table(lake.path(table, file), columns=["task_id", "logged_at"])
            found = read.group_by("task_id").aggregate([("logged_at", "max")])
            times = found["logged_at_max"].cast(pa.int64()).to_pylist()
            for task_id, at in zip(found["task_id"].to_pylist(), times, strict=True):
                if task_id is not None:
                    last[task_id] = max(last.get(task_id, 0), at or 0)
    return {task_id for task_id, at in last.items() if at < before_ms}


def expire(
    lake: Lake, writing: Writing, before_ms: int, *, is_trial: bool = False, announce: Announce = lambda _: None
) -> dict[str, Removed]:
    """Remove what is older than `before_ms`, Unix ms, and return by table what was removed. A trial changes nothing.

    Writers and readers go on meanwhile. Raises NotReadyError if a merge of files doesn't end, and OSError.
    """
    with _merging(lake, announce), lake.pin() as pinned:
        total = sum(len(pinned.files.get(table, ())) for table in (*OF_TASKS, *BY_AGE))
        numbers = itertools.count(1)
        tasks = pa.array(sorted(old_tasks(lake, pinned, before_ms)), pa.string())
        changes: dict[str, list[Change]] = {}
        is_part = False
        try:
            for table in (*OF_TASKS, *BY_AGE):
                made = changes.setdefault(table, [])
                keeps = _keeps(table, tasks, before_ms)
                for file in pinned.files.get(table, ()):
                    if (change := _change(lake, writing, table, file, keeps)) is not None:
                        made.append(change)
                    announce(f"{next(numbers)} of {total} files of the lake are looked through")
                if made:
                    sync(lake.folder / table)
            found = {table: _removed(made) for table, made in changes.items() if made}
            if found and not is_trial:
                _commit(lake, changes)
                is_part = True
            return found
        finally:
            if not is_part:
                for table, made in changes.items():
                    lake.discard(table, [change.new.name for change in made if change.new is not None])


@contextmanager
def _merging(lake: Lake, announce: Announce) -> Iterator[None]:
    """Meanwhile no other process merges files, so that those of the newest manifest stay in it. Raises NotReadyError."""
    deadline = time.monotonic() + MERGE_S
    while True:
        with locks.alone(lake.folder / LOCK) as is_alone:
            if is_alone:
                yield
                return
        if time.monotonic() > deadline:
            raise NotReadyError(f"another process merges files of the lake in {lake.folder} for over {MERGE_S:.0f} s")
        announce("another process merges files of the lake, or prunes it; waiting for its end")
        time.sleep(LOOK_S)


def _keeps(table: str, tasks: Any, before_ms: int) -> Callable[[Any], Any]:
    """A function of a pyarrow Table with the rows to keep: an array of booleans."""
    if table in BY_AGE:
        return lambda rows: pc.greater_equal(rows["logged_at"].cast(pa.int64()), before_ms)
    return lambda rows: pc.invert(pc.is_in(rows["task_id"], value_set=tasks))


def _change(lake: Lake, writing: Writing, table: str, file: File, keeps: Callable[[Any], Any]) -> Change | None:
    """None if all rows of the file stay."""
    path = lake.path(table, file)
    column = "logged_at" if table in BY_AGE else "task_id"
    kept = pc.sum(keeps(pq.read_table(path, columns=[column]))).as_py() or 0
    if kept == file.rows:
        return None
    if kept == 0:
        return Change(file, None)
    new = lake.folder / table / writing.new_name()
    try:
        write_merged(new, [path], TABLES[table].arrow, keep=lambda rows: rows.filter(keeps(rows)))
    except BaseException:
        new.unlink(missing_ok=True)  # a part of a file is no use, and the disk may be full
        raise
    return Change(file, File(new.name, kept, new.stat().st_size))


def _commit(lake: Lake, changes: Mapping[str, Sequence[Change]]) -> None:
    while True:
        newest = expired = lake.newest()
        for table, made in changes.items():
            new = [change.new for change in made if change.new is not None]
            expired = expired.replaced(table, [change.old for change in made], new)
        with suppress(ConflictError):  # a writer has added files meanwhile
            lake.commit(newest, expired)
            return


def _removed(made: Sequence[Change]) -> Removed:
    rows = sum(change.old.rows - (change.new.rows if change.new else 0) for change in made)
    size = sum(change.old.bytes - (change.new.bytes if change.new else 0) for change in made)
    return Removed(rows, size)
