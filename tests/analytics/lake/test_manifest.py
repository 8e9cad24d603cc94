"""Commits of the lake: each number once, rows and offsets together."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.lake import locks
from analytics.lake.manifest import ConflictError, File, Lake, Manifest
from topics.types.errors import NotReadyError

WRITERS = 4
COMMITS = 25


def read_on(lake: Lake, base: Manifest, offset: int) -> Manifest:
    """Commit partition 0 of `events` as read to `offset`."""
    return lake.commit(base, base.advanced({("events", 0): offset}, {}))


def test_an_empty_lake_is_version_0(lake: Lake) -> None:
    assert lake.newest() == Manifest()
    assert Lake(lake.folder / "elsewhere").newest() == Manifest()


def test_a_commit_is_the_newest_until_the_next(lake: Lake) -> None:
    file = File("a.parquet", 3, 100)
    first = lake.commit(lake.newest(), Manifest().advanced({("events", 2): 7}, {"events": [file]}))
    assert (first.version, first.offset(("events", 2)), first.offset(("events", 1))) == (1, 7, None)
    assert lake.newest() == first
    second = lake.commit(first, first.replaced("events", [file], [File("b.parquet", 3, 90)]))
    assert lake.newest() == second
    assert second.files == {"events": [File("b.parquet", 3, 90)]}
    assert lake.read(1) == first
    assert [*(lake.folder / "manifest").glob("*.draft")] == []


def test_of_two_that_read_the_same_one_commits(lake: Lake) -> None:
    base = lake.newest()
    won = read_on(lake, base, 1)
    with pytest.raises(ConflictError):
        read_on(lake, base, 2)
    assert lake.newest() == won
    assert [*(lake.folder / "manifest").glob("*.draft")] == []


def test_a_writer_that_slept_past_the_removal_of_its_base_has_a_conflict(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It falls asleep after it saw that its base is the newest; its number is then free again, since older ones are removed."""
    base = read_on(lake, lake.newest(), 1)
    newest = base
    for offset in range(2, 6):
        newest = read_on(lake, newest, offset)
    for version in range(1, 4):
        lake.remove(version)
    with monkeypatch.context() as asleep:
        asleep.setattr(lake.store, "newest_version", lambda: base.version)
        with pytest.raises(ConflictError):
            read_on(lake, base, 99)
    assert lake.newest() == newest


def count_up(folder: Path) -> None:
    lake = Lake(folder)
    for _ in range(COMMITS):
        while True:
            base = lake.newest()
            try:
                read_on(lake, base, (base.offset(("events", 0)) or 0) + 1)
            except ConflictError:
                continue
            break


def test_racing_processes_lose_no_commit(lake: Lake) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=count_up, args=(lake.folder,)) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert lake.newest().version == WRITERS * COMMITS
    assert lake.newest().offset(("events", 0)) == WRITERS * COMMITS
    assert lake.versions() == list(range(1, WRITERS * COMMITS + 1))


def test_a_pin_says_its_version_while_it_lasts(lake: Lake) -> None:
    made = read_on(lake, lake.newest(), 1)
    with lake.pin() as pinned, lake.pin():
        assert pinned == made
        assert sorted(locks.living(lake.readers).values()) == ["1", "1"]
    assert locks.living(lake.readers) == {}


def test_a_lake_that_isnt_there_cant_be_pinned(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"no lake in .*polar up"), Lake(tmp_path).pin():
        pass


def test_a_damaged_manifest_is_said_and_once_removed_the_one_before_is_the_lake(lake: Lake) -> None:
    first = read_on(lake, lake.newest(), 1)
    second = read_on(lake, first, 2)
    [newest] = [path for path in (lake.folder / "manifest").iterdir() if int(path.stem) == second.version]
    whole = newest.read_bytes()
    for damaged in (b"", whole[:-9], b"\xff" + whole, b'{"version": "x"}'):
        newest.write_bytes(damaged)
        with pytest.raises(OSError, match=rf"{newest} is damaged .* the manifest before"):
            lake.newest()
    newest.unlink()
    assert lake.newest() == first
    assert read_on(lake, first, 3) == lake.newest()


def test_what_others_put_beside_the_manifests_is_none(lake: Lake) -> None:
    made = read_on(lake, lake.newest(), 1)
    for name in ("copy.json", "00000000000000000009 (copy).json", "0009.json~"):
        (lake.folder / "manifest" / name).write_text("mine")
    assert lake.newest() == made


FILES = st.lists(st.builds(File, st.uuids().map(str), st.integers(0), st.integers(0)), max_size=4, unique=True)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.integers(0)),
            st.dictionaries(st.sampled_from(["events", "nodes"]), FILES),
        )
    )
)
def test_what_commits_add_adds_up(steps: list[tuple[dict[tuple[str, int], int], dict[str, list[File]]]]) -> None:
    made = Manifest()
    offsets: dict[tuple[str, int], int] = {}
    files: list[File] = []
    for read, added in steps:
        made = made.advanced(read, added)
        offsets |= read
        files += [file for more in added.values() for file in more]
    assert {(topic, number): at for topic, parts in made.offsets.items() for number, at in parts.items()} == offsets
    assert sorted(file.name for more in made.files.values() for file in more) == sorted(file.name for file in files)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Manifest) == made
