"""Fewer files, the same rows, and nothing gone that someone reads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.lake import compaction, files, locks, store
from analytics.lake.compaction import FAN_IN, TARGET_BYTES, choose, merge, prune, tidy
from analytics.lake.manifest import ConflictError, File, Lake, Manifest, Writing
from analytics.lake.schema import TABLES

HALT = threading.Event()
TABLE = "disowned"


@pytest.fixture
def writing(lake: Lake) -> Iterator[Writing]:
    with lake.writing() as made:
        yield made


def some(call_ids: Sequence[str]) -> Any:
    rows = [
        dict.fromkeys(TABLES[TABLE].arrow.names)
        | {"log_partition": 0, "log_offset": number, "logged_at": 0, "call_id": call_id}
        for number, call_id in enumerate(call_ids)
    ]
    table, unfit = files.arrow(TABLES[TABLE], rows)
    assert unfit == []
    return table


def add(lake: Lake, writing: Writing, *call_ids: str, table: Any = None) -> Manifest:
    """Commit one file of these rows."""
    name = writing.new_name()
    made = some(call_ids) if table is None else table
    size = files.write(lake.folder / TABLE / name, made)
    newest = lake.newest()
    offsets = {("events", 0): (newest.offset(("events", 0)) or 0) + 1}
    return lake.commit(newest, newest.advanced(offsets, {TABLE: [File(name, len(made), size)]}))


def add_each(lake: Lake, writing: Writing, count: int = FAN_IN) -> Manifest:
    """Commit `count` files of one row each: "0", "1", …"""
    return [add(lake, writing, str(number)) for number in range(count)][-1]


def held(lake: Lake, manifest: Manifest | None = None) -> Counter[str]:
    """Call ids in a manifest's files."""
    there = (manifest or lake.newest()).files.get(TABLE, [])
    return Counter(
        call_id for file in there for call_id in pq.read_table(lake.path(TABLE, file)).column("call_id").to_pylist()
    )


def on_disk(lake: Lake) -> int:
    return len(list((lake.folder / TABLE).iterdir()))


SIZES = st.lists(st.integers(1, 2 * TARGET_BYTES), max_size=60)


@given(SIZES)
def test_merging_ends_with_few_files_none_too_large(sizes: list[int]) -> None:
    """As if merged files had the size of their sources together."""
    there = [File(str(number), 1, size) for number, size in enumerate(sizes)]
    rounds = 0
    while chosen := choose(there):
        assert len(chosen) >= 2
        assert all(file.bytes < TARGET_BYTES for file in chosen)
        total = sum(file.bytes for file in chosen)
        assert total < 2 * TARGET_BYTES
        there = [file for file in there if file not in chosen] + [File(f"m{rounds}", len(chosen), total)]
        rounds += 1
    small = [file for file in there if file.bytes < TARGET_BYTES]
    tiers = Counter(file.bytes.bit_length() // 3 for file in small)
    assert all(members < FAN_IN for members in tiers.values())
    assert rounds <= len(sizes)


def test_files_of_a_steady_writer_are_few_and_rows_are_rewritten_seldom() -> None:
    """An hour of flushes of 100 kB every 2 s."""
    there: list[File] = []
    written = 0
    for number in range(1800):
        there.append(File(str(number), 1, 100_000))
        while chosen := choose(there):
            total = sum(file.bytes for file in chosen)
            written += total
            there = [file for file in there if file not in chosen] + [File(f"m{number}", len(chosen), total)]
    assert len(there) < 30
    assert written < 4 * 1800 * 100_000


@hypothesis.settings(deadline=None, max_examples=25)
@given(parts=st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=5), min_size=2, max_size=2 * FAN_IN))
def test_merging_keeps_every_row(tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]]) -> None:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    with lake.writing() as writing:
        for part in parts:
            add(lake, writing, *part)
        before = lake.newest()
        tidy(lake, writing, HALT)
        after = lake.newest()
        assert held(lake, before) == held(lake, after) == Counter(itertools.chain(*parts))
        assert after.offsets == before.offsets
        assert len(after.files[TABLE]) == (len(parts) if len(parts) < FAN_IN else 1)
        assert sum(file.rows for file in after.files[TABLE]) == sum(map(len, parts))
        prune(lake, 0)
        assert on_disk(lake) == len(after.files[TABLE])
        assert lake.versions() == [after.version]


def test_a_merged_file_has_large_row_groups(lake: Lake, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(FAN_IN):
        add(lake, writing, *[f"{number}-{call}" for call in range(100)])
    monkeypatch.setattr(compaction, "GROUP_BYTES", 3 * some([f"0-{call}" for call in range(100)]).nbytes)
    tidy(lake, writing, HALT)
    (file,) = lake.newest().files[TABLE]
    metadata = pq.read_metadata(lake.path(TABLE, file))
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [300, 300, 200]


def test_older_files_get_nulls_and_columns_of_newer_writers_stay(lake: Lake, writing: Writing) -> None:
    old = some(["old"]).drop_columns(["reason"])
    new = some(["new"]).append_column("colour", pa.array(["red"]))
    first, second = add(lake, writing, table=old), add(lake, writing, table=new)
    chosen = second.files[TABLE]
    assert first.files[TABLE] == chosen[:1]
    assert merge(lake, writing, TABLE, chosen, HALT)
    (file,) = lake.newest().files[TABLE]
    assert pq.read_table(lake.path(TABLE, file), columns=["call_id", "reason", "colour"]).to_pylist() == [
        {"call_id": "old", "reason": None, "colour": None},
        {"call_id": "new", "reason": None, "colour": "red"},
    ]


def test_a_merge_that_meets_other_commits_is_laid_over_them(
    lake: Lake, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = add_each(lake, writing, 3).files[TABLE]
    commit, met = lake.commit, 0

    def late(base: Manifest, new: Manifest) -> Manifest:
        nonlocal met
        met += 1
        if met == 1:
            monkeypatch.setattr(lake, "commit", commit)
            add(lake, writing, "meanwhile")
            monkeypatch.setattr(lake, "commit", late)
            with pytest.raises(ConflictError):
                commit(base, new)
            raise ConflictError
        return commit(base, new)

    monkeypatch.setattr(lake, "commit", late)
    assert merge(lake, writing, TABLE, chosen, HALT)
    assert met == 2
    assert held(lake) == Counter(["0", "1", "2", "meanwhile"])
    assert len(lake.newest().files[TABLE]) == 2


def test_a_merge_whose_files_are_gone_or_that_is_halted_leaves_nothing(lake: Lake, writing: Writing) -> None:
    chosen = add_each(lake, writing, 2).files[TABLE]
    halted = threading.Event()
    halted.set()
    assert not merge(lake, writing, TABLE, chosen, halted)
    newest = lake.newest()
    lake.commit(newest, newest.replaced(TABLE, chosen[:1], []))
    assert not merge(lake, writing, TABLE, chosen, HALT)
    assert on_disk(lake) == 2
    assert held(lake) == Counter(["1"])


def test_a_merge_whose_commit_fails_at_its_very_last_step_keeps_its_file(
    lake: Lake, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = add_each(lake, writing, 3).files[TABLE]

    def broken(folder: Path) -> None:
        if folder.name == "manifest":
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "sync", broken)
    with pytest.raises(OSError, match="Input/output"):
        merge(lake, writing, TABLE, chosen, HALT)
    assert len(lake.newest().files[TABLE]) == 1
    assert held(lake) == Counter(["0", "1", "2"])


def test_a_number_that_a_sleeper_used_again_stops_no_removal(lake: Lake, writing: Writing) -> None:
    add_each(lake, writing, 4)
    (lake.folder / "manifest" / f"{1:020}.json").rename(lake.folder / "kept")
    lake.remove(2)
    (lake.folder / "kept").rename(lake.folder / "manifest" / f"{1:020}.json")
    prune(lake, 0)
    assert lake.versions() == [4]
    assert held(lake).total() == on_disk(lake) == 4


def test_a_pinned_manifests_files_stay_until_the_pin_is_gone(lake: Lake, writing: Writing) -> None:
    add(lake, writing, "early")
    prune(lake, 0)
    with lake.pin() as pinned:
        add_each(lake, writing)
        tidy(lake, writing, HALT, 0)
        prune(lake, 0)
        assert held(lake, pinned) == Counter(["early"])
        assert lake.versions()[0] == pinned.version
        assert on_disk(lake) == FAN_IN + 2
    prune(lake, 0)
    assert lake.versions() == [lake.newest().version]
    assert on_disk(lake) == 1
    assert held(lake).total() == FAN_IN + 1


def test_a_pin_whose_version_isnt_said_yet_keeps_everything(lake: Lake, writing: Writing) -> None:
    add_each(lake, writing, 3)
    with lake.pin():
        (mark,) = lake.readers.iterdir()
        os.truncate(mark, 0)
        prune(lake, 0)
        assert len(lake.versions()) == 3
    prune(lake, 0)
    assert len(lake.versions()) == 1


def test_what_was_the_newest_within_the_grace_period_stays(lake: Lake, writing: Writing) -> None:
    add_each(lake, writing)
    tidy(lake, writing, HALT)
    assert len(lake.versions()) == FAN_IN + 1
    assert on_disk(lake) == FAN_IN + 1
    tidy(lake, writing, HALT, 0)
    assert (len(lake.versions()), on_disk(lake)) == (1, 1)


def test_a_clock_that_ran_a_year_ahead_keeps_nothing_for_a_year(
    lake: Lake, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as ahead:
        now = time.time()
        ahead.setattr(time, "time", lambda: now + 365 * 86_400)
        add_each(lake, writing)
    tidy(lake, writing, HALT)
    add(lake, writing, "right")
    tidy(lake, writing, HALT)
    assert len(lake.versions()) == 3
    assert held(lake) == Counter(["right", *map(str, range(FAN_IN))])


def test_only_a_dead_writers_uncommitted_files_are_orphans(lake: Lake, writing: Writing) -> None:
    with lake.writing() as dying:
        add(lake, dying, "committed")
        files.write(lake.folder / TABLE / dying.new_name(), some(["never"]))
        files.write(lake.folder / TABLE / writing.new_name(), some(["soon"]))
        prune(lake, 0)
        assert on_disk(lake) == 3
    prune(lake, 0)
    assert on_disk(lake) == 2
    assert held(lake) == Counter(["committed"])
    assert len(list(lake.writers.iterdir())) == 1


def test_only_one_process_tidies_at_a_time(lake: Lake, writing: Writing) -> None:
    add_each(lake, writing)
    with locks.alone(lake.folder / "compaction.lock") as is_alone:
        assert is_alone
        tidy(lake, writing, HALT, 0)
        assert len(lake.newest().files[TABLE]) == FAN_IN
    tidy(lake, writing, HALT, 0)
    assert len(lake.newest().files[TABLE]) == 1


def test_an_old_draft_of_a_manifest_is_removed(lake: Lake) -> None:
    old, new = lake.folder / "manifest" / "a.draft", lake.folder / "manifest" / "b.draft"
    for draft in (old, new):
        draft.touch()
    os.utime(old, (0, 0))
    prune(lake, 0)
    assert [*(lake.folder / "manifest").glob("*.draft")] == [new]
