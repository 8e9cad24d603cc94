"""Old tasks leave the lake whole, and nothing else does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.lake import compaction, files
from analytics.lake.manifest import File, Lake, Manifest
from analytics.lake.retention import BY_AGE, OF_TASKS, Removed, expire, old_rows, old_tasks
from analytics.lake.schema import TABLES
from tests.analytics.known_run import known_run
from tests.analytics.story import NOON, write

DAY_S = 86_400.0
CUT_MS = NOON + int(15 * DAY_S * 1000)


def contents(lake: Lake, newest: Manifest | None = None) -> dict[str, Counter[str]]:
    """All rows of all tables, as text."""
    found = {}
    for table in TABLES:
        there = (newest or lake.newest()).files.get(table, ())
        found[table] = Counter(str(row) for file in there for row in pq.read_table(lake.path(table, file)).to_pylist())
    return found


def pruned(lake: Lake, before_ms: int) -> dict[str, Removed]:
    with lake.writing() as writing:
        return expire(lake, writing, before_ms)


def test_old_tasks_go_whole_and_young_ones_stay_as_they_are(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake", known_run())
    before, tasks = contents(lake), old_tasks(lake, lake.newest(), NOON + 10**9)
    assert {"mend", "parse", "talk"} <= tasks
    # `mend` is the first that is over.
    ends = {task: max(_times(lake, task)) for task in tasks}
    first = min(ends, key=lambda task: ends[task])
    cut = ends[first] + 1
    doomed = {task for task in tasks if ends[task] < cut}
    assert doomed < tasks
    with lake.pin() as pinned:
        removed = pruned(lake, cut)
        assert contents(lake, pinned) == before, "a reader goes on"
    after = contents(lake)
    for table in OF_TASKS:
        kept = Counter(
            {
                row: count
                for row, count in before[table].items()
                if not any(f"'task_id': '{one}'" in row for one in doomed)
            }
        )
        assert after[table] == kept, table
    for table in set(TABLES) - set(OF_TASKS) - set(BY_AGE):
        assert after[table] == before[table], table
    assert {table: each.rows for table, each in removed.items()} == {
        table: gone for table in TABLES if (gone := before[table].total() - after[table].total())
    }
    assert lake.newest().offsets == pinned.offsets
    assert pruned(lake, cut) == {}


def _times(lake: Lake, task: str) -> Iterable[int]:
    for table in OF_TASKS:
        for file in lake.newest().files.get(table, ()):
            for row in pq.read_table(lake.path(table, file)).to_pylist():
                if row["task_id"] == task:
                    yield int(row["logged_at"].timestamp() * 1000)


def test_files_of_old_rows_alone_are_not_rewritten_and_are_deleted_once_nobody_needs_them(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake", known_run())
    old = lake.newest()
    with lake.writing() as writing:
        removed = expire(lake, writing, CUT_MS)
        assert removed["completions"].rows == sum(file.rows for file in old.files["completions"])
        assert {table for table, there in lake.newest().files.items() if there} == {"publications"}
        compaction.tidy(lake, writing, threading.Event(), grace_s=-1.0)
    assert [path.name for path in (lake.folder / "completions").iterdir()] == []


def test_a_trial_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake", known_run())
    newest, there = lake.newest(), sorted(lake.folder.rglob("*.parquet"))
    cut = NOON + 40_000
    trial = old_rows(lake, cut)
    assert trial
    assert lake.newest() == newest
    assert sorted(lake.folder.rglob("*.parquet")) == there
    assert {table: each.rows for table, each in pruned(lake, cut).items()} == {
        table: each.rows for table, each in trial.items()
    }


def test_a_trial_knows_the_bytes_of_whole_files_and_estimates_those_of_parts(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake", known_run())
    first = min(max(_times(lake, task)) for task in old_tasks(lake, lake.newest(), CUT_MS))
    part = old_rows(lake, first + 1)["events"]
    whole = old_rows(lake, CUT_MS)
    assert 0 < part.bytes < whole["events"].bytes
    assert pruned(lake, CUT_MS) == whole


def test_a_commit_that_comes_between_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = write(tmp_path / "lake", known_run())
    added: list[File] = []

    whole = Lake.commit

    def commit_first(lake: Lake, base: Manifest, new: Manifest) -> Manifest:
        if not added:
            row = dict.fromkeys(TABLES["disowned"].arrow.names) | {"task_id": "new", "logged_at": CUT_MS}
            made, _ = files.arrow(TABLES["disowned"], [row])
            name = "of-another-writer.parquet"
            added.append(File(name, 1, files.write(lake.folder / "disowned" / name, made)))
            whole(lake, lake.newest(), lake.newest().advanced({("events", 0): 10**6}, {"disowned": added}))
        return whole(lake, base, new)

    monkeypatch.setattr(Lake, "commit", commit_first)
    assert pruned(lake, CUT_MS)
    newest = lake.newest()
    assert newest.files["disowned"] == added
    assert newest.offset(("events", 0)) == 10**6


def test_files_that_are_merged_meanwhile_are_looked_through_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = write(tmp_path / "lake", known_run())
    split(lake, "completions", 3)
    expected, whole = contents(lake), Lake.commit
    cut = max(max(_times(lake, task)) for task in ("mend", "parse", "talk"))
    doomed = old_tasks(lake, lake.newest(), cut)
    merged: list[bool] = []

    def merge_first(lake: Lake, base: Manifest, new: Manifest) -> Manifest:
        if not merged:
            merged.append(True)
            with lake.writing() as other:
                assert compaction.merge(lake, other, "completions", base.files["completions"], threading.Event())
        return whole(lake, base, new)

    monkeypatch.setattr(Lake, "commit", merge_first)
    assert pruned(lake, cut)["completions"].rows
    kept = {row: count for row, count in expected["completions"].items() if not _is_of(row, doomed)}
    assert 0 < sum(kept.values()) < expected["completions"].total()
    assert contents(lake)["completions"] == Counter(kept)
    newest = lake.newest()
    assert len(newest.files["completions"]) == 1
    assert {path.name for path in (lake.folder / "completions").iterdir()} == {
        file.name for version in lake.versions() for file in lake.read(version).files.get("completions", ())
    }, "what wasn't committed is gone"


def split(lake: Lake, table: str, parts: int) -> None:
    """Spread a table's only file over several."""
    newest = lake.newest()
    (file,) = newest.files[table]
    rows = pq.read_table(lake.path(table, file))
    made = []
    with lake.writing() as writing:
        for number in range(parts):
            part = rows.take(list(range(number, len(rows), parts)))
            name = writing.new_name()
            made.append(File(name, len(part), files.write(lake.folder / table / name, part)))
        lake.publish({table: [one.name for one in made]})
        lake.commit(newest, newest.replaced(table, [file], made))


def _is_of(row: str, tasks: Iterable[str]) -> bool:
    return any(f"'task_id': '{one}'" in row for one in tasks)


def test_it_says_how_far_it_is(tmp_path: Path) -> None:
    lake = write(tmp_path / "lake", known_run())
    of_trial: list[str] = []
    old_rows(lake, CUT_MS, of_trial.append)
    sentences: list[str] = []
    with lake.writing() as writing:
        expire(lake, writing, CUT_MS, announce=sentences.append)
    count = len(sentences)
    assert sentences[-1] == f"{count} of {count} files of the lake are looked through"
    assert sentences == of_trial


@settings(max_examples=10)
@given(seconds=st.floats(-20, 200))
def test_no_row_is_lost_or_doubled_wherever_the_cut_is(
    tmp_path_factory: pytest.TempPathFactory, seconds: float
) -> None:
    lake = write(tmp_path_factory.mktemp("lake") / "lake", known_run())
    before = contents(lake)
    tasks = old_tasks(lake, lake.newest(), cut := NOON + round(seconds * 1000))
    pruned(lake, cut)
    after = contents(lake)
    for table in TABLES:
        assert after[table] <= before[table], table
        if table in OF_TASKS:
            gone = before[table] - after[table]
            assert all(any(f"'task_id': '{one}'" in row for one in tasks) for row in gone), table
            assert not any(f"'task_id': '{one}'" in row for one in tasks for row in after[table]), table
