"""The guarantees of a lake, wherever it lies. Each host opens it by settings of its own."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from analytics.lake import compaction, copying, places, retention
from analytics.lake.manifest import ConflictError, Lake, Manifest
from analytics.lake.rows import Row
from analytics.lake.schema import TABLES
from analytics.queries import query
from analytics.writing.flush import SupersededError, flush
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

TABLE = "disowned"
PARTITION = ("completions", 0)
OTHER = ("completions", 1)
HALT = threading.Event()
DEADLINE_S = 60.0
Hosts = Callable[[str], Settings]


def row(partition: int, offset: int, **more: Any) -> Row:
    return (
        dict.fromkeys(TABLES[TABLE].arrow.names)
        | {"log_partition": partition, "log_offset": offset, "logged_at": offset, "call_id": f"{partition}-{offset}"}
        | more
    )


def write(lake: Lake, first: int, end: int, **more: Any) -> None:
    """Read partition 0 from `first` to `end` into the lake, as a writer of its own."""
    rows = {TABLE: [row(0, offset, **more) for offset in range(first, end)]}
    with lake.writing() as writing:
        flush(lake, writing, rows, {PARTITION: first or None}, {PARTITION: end})


def contents(lake: Lake) -> list[tuple[int, int]]:
    """Partition and offset of each row, sorted; read without copies."""
    found: list[tuple[int, int]] = []
    for file in lake.newest().files.get(TABLE, ()):
        with lake.open(TABLE, file) as opened:
            read = pq.read_table(opened, columns=["log_partition", "log_offset"])
        found += zip(*(read[name].to_pylist() for name in read.column_names), strict=True)
    return sorted(found)


def answer(
    settings: Settings, sql: str = f"SELECT count(*), min(log_offset), max(log_offset) FROM lake.{TABLE}"
) -> Any:
    with query.connect(settings) as reader:
        return [*reader.ask(sql).rows()]


def die_before_the_commit(settings: Settings, variables: Mapping[str, str]) -> None:
    os.environ.update(variables)
    lake = places.lake(settings)

    def die(*_: object) -> Manifest:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")

    setattr(lake, "commit", die)  # noqa: B010 - at this step and no other
    write(lake, 5, 9)


class LakeContract:
    """Run for each store; `hosts` gives the settings of the host of a name."""

    def stored(self, lake: Lake) -> set[str]:
        """Names of all Parquet files of the table, in manifests or not."""
        raise NotImplementedError

    def forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let files of dead writers be removed at once."""
        raise NotImplementedError

    def test_a_commit_is_the_newest_on_every_host(self, hosts: Hosts) -> None:
        lake, elsewhere = places.lake(hosts("a")), places.lake(hosts("b"))
        assert elsewhere.newest() == Manifest()
        write(lake, 0, 5)
        assert elsewhere.newest() == lake.newest() == elsewhere.read(1)
        write(elsewhere, 5, 7)
        assert lake.newest().offset(PARTITION) == 7
        assert lake.versions() == [1, 2]
        assert answer(hosts("c")) == [(7, 0, 6)]

    def test_a_lake_that_isnt_there_is_said(self, hosts: Hosts) -> None:
        with pytest.raises(NotReadyError, match=r"no lake in .*polar worker analytics"):
            answer(hosts("a"))

    def test_of_two_that_read_the_same_one_commits(self, hosts: Hosts) -> None:
        lake, other = places.lake(hosts("a")), places.lake(hosts("b"))
        lake.prepare()
        base = lake.newest()
        won = lake.commit(base, base.advanced({PARTITION: 1}, {}))
        with pytest.raises(ConflictError):
            other.commit(base, base.advanced({PARTITION: 2}, {}))
        assert other.newest() == won

    def test_a_writer_that_slept_past_the_removal_of_its_base_has_a_conflict(
        self, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lake = places.lake(hosts("a"))
        for offset in range(4):
            write(lake, offset, offset + 1)
        base, newest = lake.read(1), lake.newest()
        for version in (1, 2):
            lake.remove(version)
        with monkeypatch.context() as asleep:
            asleep.setattr(lake.store, "newest_version", lambda: base.version)
            with pytest.raises(ConflictError):
                lake.commit(base, base.advanced({PARTITION: 99}, {}))
        assert places.lake(hosts("b")).newest() == newest

    def test_a_zombie_finds_its_partitions_moved_and_commits_nothing(self, hosts: Hosts) -> None:
        lake, zombie = places.lake(hosts("a")), places.lake(hosts("b"))
        write(lake, 0, 3)
        with pytest.raises(SupersededError, match=r"completions\[0\] is at 3, not at None"):
            write(zombie, 0, 2)
        assert contents(lake) == [(0, 0), (0, 1), (0, 2)]
        assert len(self.stored(lake)) == 1

    def test_writers_that_fight_over_partitions_write_each_row_once(self, racing_hosts: Hosts) -> None:
        hosts, ends = racing_hosts, {PARTITION: 12, OTHER: 8}

        def fight(number: int) -> None:
            chance, lake = random.Random(number), places.lake(hosts(f"host-{number}"))
            with lake.writing() as writing:
                while any(((newest := lake.newest()).offset(each) or 0) < end for each, end in ends.items()):
                    mine = chance.sample(sorted(ends), chance.randint(1, 2))
                    base = {each: newest.offset(each) for each in mine}
                    reached = {each: min((base[each] or 0) + chance.randint(1, 4), ends[each]) for each in mine}
                    rows = [row(each[1], offset) for each in mine for offset in range(base[each] or 0, reached[each])]
                    try:
                        flush(lake, writing, {TABLE: rows} if rows else {}, base, reached)
                    except SupersededError:
                        continue

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(fight, range(3)))
        expected = [*((0, offset) for offset in range(12)), *((1, offset) for offset in range(8))]
        assert contents(places.lake(hosts("a"))) == expected

    def test_a_writer_that_dies_between_upload_and_commit_leaves_nothing(
        self, hosts: Hosts, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lake = places.lake(hosts("a"))
        write(lake, 0, 5)
        context = multiprocessing.get_context("spawn")
        writer = context.Process(target=die_before_the_commit, args=(hosts("b"), dict(variables)))
        writer.start()
        writer.join(DEADLINE_S)
        assert writer.exitcode == -signal.SIGKILL
        assert len(self.stored(lake)) == 2
        assert answer(hosts("c")) == [(5, 0, 4)]
        again = places.lake(hosts("b"))
        write(again, again.newest().offset(PARTITION) or 0, 9)
        self.forget(monkeypatch)
        compaction.prune(again, compaction.GRACE_S)
        assert contents(lake) == [(0, offset) for offset in range(9)]
        assert self.stored(lake) == {file.name for file in lake.newest().files[TABLE]}

    def test_merging_keeps_each_row_and_what_a_reader_has_begun_to_read(self, hosts: Hosts) -> None:
        lake, other = places.lake(hosts("a")), places.lake(hosts("b"))
        for offset in range(compaction.FAN_IN):
            write(lake if offset % 2 else other, offset, offset + 1)
        count = f"SELECT count(*), max(log_offset) FROM lake.{TABLE}"
        with query.connect(hosts("c")) as reader:
            assert [*reader.ask(count).rows()] == [(8, 7)]
            with other.writing() as writing:
                compaction.tidy(other, writing, HALT, 0.0)
            (merged,) = lake.newest().files[TABLE]
            write(lake, 8, 10)
            compaction.prune(lake, 0.0)
            assert [*reader.ask(count).rows()] == [(8, 7)]
        assert answer(hosts("c"), count) == answer(hosts("d"), count) == [(10, 9)]
        compaction.prune(lake, 0.0)
        assert lake.versions() == [lake.newest().version]
        assert self.stored(lake) == {file.name for file in lake.newest().files[TABLE]} > {merged.name}

    def test_old_tasks_go_and_young_ones_stay(self, hosts: Hosts) -> None:
        lake = places.lake(hosts("a"))
        write(lake, 0, 3, task_id="old", logged_at=1000)
        write(lake, 3, 5, task_id="young", logged_at=9000)
        write(lake, 5, 6, task_id="old", logged_at=2000)
        elsewhere = places.lake(hosts("b"))
        with elsewhere.writing() as writing:
            removed = retention.expire(elsewhere, writing, 5000)
        assert {table: each.rows for table, each in removed.items()} == {TABLE: 4}
        assert contents(lake) == [(0, 3), (0, 4)]
        assert lake.newest().offset(PARTITION) == 6
        compaction.prune(lake, 0.0)
        assert len(self.stored(lake)) == 1
        assert answer(hosts("c"), f"SELECT DISTINCT task_id FROM lake.{TABLE}") == [("young",)]

    def test_a_copy_shows_the_lake_as_it_was_and_gets_what_is_new(self, hosts: Hosts, tmp_path: Path) -> None:
        lake, target = places.lake(hosts("a")), Lake(tmp_path / "copy")
        write(lake, 0, 3)
        assert copying.copy(lake, target)[1:] == (1, lake.newest().files[TABLE][0].bytes)
        write(lake, 3, 5)
        assert contents(target) == [(0, 0), (0, 1), (0, 2)]
        assert copying.copy(lake, target).files == 1
        assert contents(target) == [(0, offset) for offset in range(5)]
        assert copying.copy(lake, target).files == 0
        assert target.versions() == [1, 2]
        with pytest.raises(InputError, match="is no copy of a lake"):
            copying.copy(target, Lake(tmp_path))

    def test_a_query_of_names_alone_copies_nothing_and_a_hidden_name_has_its_rows(self, hosts: Hosts) -> None:
        write(places.lake(hosts("a")), 0, 3)
        with query.connect(hosts("b")) as reader:
            assert ("disowned",) in [
                *reader.ask("SELECT view_name FROM duckdb_views() WHERE schema_name = 'lake'").rows()
            ]
            hidden = "FROM query_table(['lake.dis' || 'owned'])"
            assert len([*reader.ask(hidden).rows()]) == 3
            assert [*reader.ask(f"SELECT count(*) FROM lake.{TABLE}").rows()] == [(3,)]
