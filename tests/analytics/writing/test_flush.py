"""Rows and offsets, together or not at all."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from analytics.lake import files, store
from analytics.lake.manifest import Lake, OtherClusterError
from analytics.lake.rows import Row
from analytics.lake.schema import TABLES
from analytics.writing import flush
from analytics.writing.flush import SupersededError
from tests.analytics.loading import in_the_lake

TABLE = "disowned"
PARTITION = ("completions", 0)
OTHER = ("completions", 1)


def row(partition: int, offset: int, **more: Any) -> Row:
    return (
        dict.fromkeys(TABLES[TABLE].arrow.names)
        | {"log_partition": partition, "log_offset": offset, "logged_at": 0}
        | more
    )


def count(lake: Lake) -> int:
    return sum(1 for table in TABLES for _ in (lake.folder / table).iterdir())


def test_rows_and_offsets_are_one_commit(lake: Lake) -> None:
    with lake.writing() as writing:
        unfit = flush.flush(lake, writing, {TABLE: [row(0, 7), row(0, 8)]}, {PARTITION: None}, {PARTITION: 9})
        assert unfit == 0
        newest = lake.newest()
        assert (newest.version, newest.offset(PARTITION), newest.files[TABLE][0].rows) == (1, 9, 2)
        flush.flush(lake, writing, {}, {PARTITION: 9}, {PARTITION: 12})
        assert lake.newest().files == newest.files
        assert lake.newest().offset(PARTITION) == 12


def test_a_row_that_fits_no_column_is_counted_and_the_others_are_kept(lake: Lake) -> None:
    with lake.writing() as writing:
        rows = [row(0, 1), row(0, 2, call_id=7), row(0, 3)]
        assert flush.flush(lake, writing, {TABLE: rows}, {PARTITION: None}, {PARTITION: 4}) == 1
        assert [key[3] for key in in_the_lake(lake)] == [1, 3]
        assert flush.flush(lake, writing, {TABLE: [row(0, 4, call_id=7)]}, {PARTITION: 4}, {PARTITION: 5}) == 1
        assert lake.newest().offset(PARTITION) == 5


def test_a_zombie_finds_its_partitions_moved_and_commits_nothing(lake: Lake) -> None:
    with lake.writing() as zombie, lake.writing() as owner:
        flush.flush(lake, owner, {TABLE: [row(0, 0)]}, {PARTITION: None}, {PARTITION: 1})
        with pytest.raises(SupersededError, match=r"completions\[0\] is at 1, not at None"):
            flush.flush(lake, zombie, {TABLE: [row(0, 0)]}, {PARTITION: None, OTHER: None}, {PARTITION: 1, OTHER: 1})
    assert in_the_lake(lake).total() == 1
    assert count(lake) == 1


def test_a_lake_takes_the_records_of_one_kafka(lake: Lake) -> None:
    """The second began when the lake was empty."""
    with lake.writing() as one, lake.writing() as two:
        flush.flush(lake, one, {TABLE: [row(0, 0)]}, {PARTITION: None}, {PARTITION: 1}, cluster="first")
        with pytest.raises(
            OtherClusterError, match=r"records of the Kafka cluster first, and this Kafka is second: set POLAR_LAKE"
        ):
            flush.flush(lake, two, {TABLE: [row(1, 0)]}, {OTHER: None}, {OTHER: 1}, cluster="second")
        flush.flush(lake, one, {TABLE: [row(0, 1)]}, {PARTITION: 1}, {PARTITION: 2}, cluster="first")
    assert in_the_lake(lake).total() == 2
    assert count(lake) == 2


def test_others_commits_in_between_are_no_reason_to_give_up(lake: Lake) -> None:
    with lake.writing() as one, lake.writing() as two:
        flush.flush(lake, one, {TABLE: [row(1, 0)]}, {OTHER: None}, {OTHER: 1})
        flush.flush(lake, two, {TABLE: [row(0, 0)]}, {PARTITION: None}, {PARTITION: 1})
    assert lake.newest().offsets == {"completions": {0: 1, 1: 1}}


def test_a_full_disk_leaves_no_file_and_the_next_try_goes_well(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk stands in for one that is full after a number of files; the manifest's own included."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    rows = {TABLE: [row(0, 0)], "groups": [dict.fromkeys(TABLES["groups"].arrow.names)]}
    written = itertools.count()
    write, commit = files.write, lake.commit
    with lake.writing() as writing:
        monkeypatch.setattr(files, "write", lambda *given: full() if next(written) == 1 else write(*given))
        with pytest.raises(OSError, match="No space"):
            flush.flush(lake, writing, rows, {PARTITION: None}, {PARTITION: 1})
        monkeypatch.setattr(files, "write", write)
        monkeypatch.setattr(lake, "commit", full)
        with pytest.raises(OSError, match="No space"):
            flush.flush(lake, writing, rows, {PARTITION: None}, {PARTITION: 1})
        assert (count(lake), lake.versions()) == (0, [])
        monkeypatch.setattr(lake, "commit", commit)
        flush.flush(lake, writing, rows, {PARTITION: None}, {PARTITION: 1})
        assert (count(lake), lake.versions()) == (2, [1])


def test_a_commit_that_fails_at_its_very_last_step_is_in_the_lake_all_the_same(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try finds its own commit, and the rows are not written again."""

    def broken(folder: Path) -> None:
        if folder.name == "manifest":
            raise OSError(5, "Input/output error")

    given = ({TABLE: [row(0, 0)]}, {PARTITION: None}, {PARTITION: 1})
    with lake.writing() as writing:
        with monkeypatch.context() as patched:
            patched.setattr(store, "sync", broken)
            with pytest.raises(OSError, match="Input/output"):
                flush.flush(lake, writing, *given)
        with pytest.raises(SupersededError):
            flush.flush(lake, writing, *given)
    assert in_the_lake(lake).total() == 1
    assert count(lake) == 1


@pytest.mark.parametrize("seed", range(3))
def test_writers_that_fight_over_partitions_write_each_row_once(lake: Lake, seed: int) -> None:
    """Four writers, each at random sure that it owns both partitions, read on from the newest manifest after each defeat."""
    ends = {PARTITION: 60, OTHER: 40}

    def write(number: int) -> None:
        chance = random.Random(seed * 10 + number)
        with lake.writing() as writing:
            while any((lake.newest().offset(each) or 0) < end for each, end in ends.items()):
                newest = lake.newest()
                mine = chance.sample(sorted(ends), chance.randint(1, 2))
                base = {each: newest.offset(each) for each in mine}
                reached = {each: min((base[each] or 0) + chance.randint(0, 5), ends[each]) for each in mine}
                rows = [row(each[1], offset) for each in mine for offset in range(base[each] or 0, reached[each])]
                try:
                    flush.flush(lake, writing, {TABLE: rows} if rows else {}, base, reached)
                except SupersededError:
                    continue

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert sorted(key[2:4] for key in in_the_lake(lake).elements()) == [
        *((0, offset) for offset in range(60)),
        *((1, offset) for offset in range(40)),
    ]
