"""What a session's files occupy, on real file systems, with hostile trees."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.runtimes.cell import storage
from consumers.runtimes.cell.storage import StorageWatch, Usage, measure
from tests.waiting import eventually

MB = 1024 * 1024
NO_LIMIT = Usage(1 << 60, 1 << 60)
SCAN_HOOKS: list[Callable[[], None]] = []
"""Called before a folder is read: what a program may do while it is counted."""


def _on_scan(event: str, _arguments: tuple[object, ...]) -> None:
    if event == "os.scandir":
        for hook in SCAN_HOOKS:
            hook()


sys.addaudithook(_on_scan)

NAMES = st.sampled_from(["a", "b", "c", "\udcff", "long " * 20])
ENTRIES = st.one_of(
    st.tuples(st.just("file"), st.integers(0, 40_000)),
    st.tuples(st.just("link"), st.sampled_from(["/", "..", ".", "missing", "a"])),
    st.tuples(st.just("name of the file"), st.none()),
    st.tuples(st.just("pipe"), st.none()),
)
TREES = st.recursive(ENTRIES, lambda below: st.dictionaries(NAMES, below, max_size=4), max_leaves=20)


def grow(place: Path, tree: object, shared: Path) -> None:
    match tree:
        case dict():
            place.mkdir()
            for name, below in tree.items():
                grow(place / name, below, shared)
        case ("file", int(size)):
            place.write_bytes(b"x" * size)
        case ("link", str(target)):
            place.symlink_to(target)
        case ("name of the file", None):
            place.hardlink_to(shared)
        case ("pipe", None):
            os.mkfifo(place)


def plain_sum(folder: Path) -> Usage:
    inodes = {}
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            found = os.lstat(f"{place}/{name}")
            inodes[found.st_ino] = found.st_blocks * 512
    return Usage(sum(inodes.values()), len(inodes))


@given(tree=st.dictionaries(NAMES, TREES, max_size=4))
@settings(max_examples=60)
def test_a_walk_counts_what_a_plain_sum_counts(tree: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as place:
        shared = Path(place) / "shared"
        shared.write_bytes(b"x" * 10_000)
        top = Path(place) / "top"
        grow(top, tree, shared)
        assert measure(str(top), NO_LIMIT) == plain_sum(top)


def test_a_file_occupies_what_is_allocated_and_not_what_it_seems(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert measure(str(tmp_path), NO_LIMIT).bytes < MB


@pytest.fixture
def deep() -> Iterator[Path]:
    """300 folders in one another with a file of 10 kB in each, and no path as long as that; on a disk that few others use."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        top = Path(place) / "deep"
        top.mkdir()
        folder = os.open(top, os.O_RDONLY)
        for _ in range(300):
            make_file(folder, "file", 10_000)
            os.mkdir("f" * 200, dir_fd=folder)
            folder = inner(folder)
        os.close(folder)
        yield top
        for tree in list(top.parent.iterdir()):
            remove_deep(tree)


def inner(folder: int) -> int:
    try:
        return os.open("f" * 200, os.O_RDONLY, dir_fd=folder)
    finally:
        os.close(folder)


def make_file(folder: int, name: str, size: int) -> None:
    fd = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder)
    os.write(fd, b"x" * size)
    os.close(fd)


def remove_deep(top: Path) -> None:
    """Lift each folder out of its parent, and remove it: shutil.rmtree would recurse."""
    while inner := [path for path in top.iterdir() if path.is_dir()]:
        below = inner[0].rename(top.parent / "lifted")
        shutil.rmtree(top)
        top = below.rename(top)
    shutil.rmtree(top)


def test_a_deep_tree_is_counted_with_few_open_folders(deep: Path) -> None:
    most_open = 0

    def look() -> None:
        nonlocal most_open
        most_open = max(most_open, open_files())

    before = open_files()
    SCAN_HOOKS.append(look)
    try:
        usage = measure(str(deep), NO_LIMIT)
    finally:
        SCAN_HOOKS.clear()
    assert usage.complete
    assert usage.entries == 600
    assert usage.bytes >= 300 * 10_000
    assert most_open < before + 70
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - pathlib's way would call SCAN_HOOKS


def test_a_folder_that_moves_away_deep_inside_is_reported(deep: Path) -> None:
    scans = 0

    def move() -> None:
        """When the walk is 199 folders deep, of which it has 64 open, move a folder that it must return through."""
        nonlocal scans
        scans += 1
        if scans == 200:
            SCAN_HOOKS.clear()
            folder = os.open(deep, os.O_RDONLY)
            for _ in range(100):
                folder = inner(folder)
            os.rename("f" * 200, deep.parent / "moved", src_dir_fd=folder)
            os.close(folder)

    SCAN_HOOKS.append(move)
    usage = measure(str(deep), NO_LIMIT)
    assert not usage.complete
    assert usage.entries == 600  # it had passed all on the way down


def test_a_tree_that_changes_all_the_time_is_counted_without_an_error(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(100):
        (tree / f"{number}" / "below" / "deeper").mkdir(parents=True)
    ended = threading.Event()

    def change() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            folder = tree / f"{number % 100}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.symlink_to("/") if number % 2 else (folder / "below").mkdir(parents=True)
            if folder.is_symlink():
                folder.unlink()
                (folder / "below" / "deeper").mkdir(parents=True)

    changes = threading.Thread(target=change)
    changes.start()
    try:
        for _ in range(50):
            assert measure(str(tree), NO_LIMIT).entries <= 300
    finally:
        ended.set()
        changes.join()


def test_a_walk_ends_as_soon_as_the_limit_is_exceeded(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number}").mkdir()
    assert measure(str(tmp_path), Usage(1 << 60, 100)).entries == 101
    assert measure(str(tmp_path), Usage(0, 1 << 60)).entries == 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that nobody else writes to or removes from: what others do hides a growth, or shows one."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "none", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.contract
async def test_a_filler_is_found_within_two_seconds(disk: Path) -> None:
    watch = StorageWatch(disk, storage_mb=32)
    problem = asyncio.create_task(watch.exceeded())
    await asyncio.sleep(0)
    (disk / "big").write_bytes(b"x" * 40 * MB)
    began = time.monotonic()
    assert "more than 32 MB" in await problem
    assert time.monotonic() - began < 2


@pytest.mark.contract
async def test_a_filler_of_many_small_steps_is_found_with_few_walks(disk: Path) -> None:
    watch = StorageWatch(disk, storage_mb=32)
    problem = asyncio.create_task(watch.exceeded())
    with (disk / "big").open("wb", buffering=0) as file:
        while not problem.done():
            file.write(b"x" * MB)
            await asyncio.sleep(0.05)
    assert "more than 32 MB" in await problem
    assert file_mb(disk / "big") < 64
    assert watch.walks < 20


def file_mb(path: Path) -> int:
    return path.stat().st_size // MB


@pytest.mark.contract
async def test_an_idle_session_costs_no_walks(disk: Path) -> None:
    """Others write to the same disk meanwhile, less than a 64th of the session's limit."""
    session = disk / "session"
    session.mkdir()
    (session / "base").write_bytes(b"x" * MB)
    watch = StorageWatch(session, storage_mb=100_000)
    problem = asyncio.create_task(watch.exceeded())
    for number in range(15):
        (disk / f"other-{number}").write_bytes(b"x" * MB)
        await asyncio.sleep(0.1)
    assert watch.walks == 0
    problem.cancel()


def test_too_many_files_exceed_a_limit_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "ENTRIES", 50)
    for number in range(51):
        (tmp_path / f"{number}").touch()
    assert StorageWatch(tmp_path, storage_mb=100).walk() == "The session has more than 50 files and folders."


def test_a_removed_file_that_is_still_open_counts(tmp_path: Path) -> None:
    with (tmp_path / "hidden").open("wb") as file:
        file.write(b"x" * 3 * MB)
        file.flush()
        (tmp_path / "hidden").unlink()
        assert "more than 2 MB" in StorageWatch(tmp_path, 2, pids=lambda: [os.getpid(), 1 << 22]).walk()
        assert StorageWatch(tmp_path, 2).walk() == ""
    assert StorageWatch(tmp_path, 2, pids=lambda: [os.getpid()]).walk() == ""


CLOSED = """
import os, sys
from pathlib import Path
from consumers.runtimes.cell.storage import StorageWatch, Usage, measure
os.setresuid(12345, 12345, 12345)
top = Path(sys.argv[1])
for name, mode in (("closed", 0), ("listed", 0o400), ("searched", 0o100)):
    (top / name / "below").mkdir(parents=True)
    (top / name / "below" / "file").write_bytes(b"x" * 1024 * 1024)
    (top / name).chmod(mode)
most = Usage(1 << 60, 1 << 60)
print(measure(str(top), most).complete, measure(str(top), most).bytes >> 20)
print(measure(str(top), most, reveal=True).complete, measure(str(top), most, reveal=True).bytes >> 20)
print(*(oct((top / name).stat().st_mode & 0o777) for name in ("closed", "listed", "searched")))
"""


@pytest.mark.contract
@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program as another user")
def test_closed_folders_hide_nothing_from_an_unprivileged_worker(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chown(place, 12345, 12345)
        argv = [sys.executable, "-c", CLOSED, place]
        output = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert output.splitlines() == ["False 0", "True 3", "0o0 0o400 0o100"]


UNCOUNTABLE = """
import os, sys
from pathlib import Path
from consumers.runtimes.cell.storage import StorageWatch
os.setresuid(12345, 12345, 12345)
for session in ("open", "uncountable"):
    watch = StorageWatch(Path(sys.argv[1]) / session, storage_mb=8)
    (Path(sys.argv[1]) / f"not of {session}").write_bytes(b"x" * 20 * 1024 * 1024)
    print(watch.walk())
"""


@pytest.mark.contract
@pytest.mark.skipif(os.geteuid() != 0, reason="runs a program as another user")
def test_a_session_that_cannot_be_counted_is_charged_for_the_growth_of_the_disk() -> None:
    """It has a folder of another user here, which its worker can't open."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:  # a disk that few others use
        os.chown(place, 12345, 12345)
        (Path(place) / "open").mkdir()
        (Path(place) / "uncountable" / "closed").mkdir(mode=0o700, parents=True)
        argv = [sys.executable, "-c", UNCOUNTABLE, place]
        output = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert output.splitlines() == ["", "The session's files occupy more than 8 MB, its limit (storage_mb)."]


async def test_a_watch_of_a_folder_that_is_removed_ends_with_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    problem = asyncio.create_task(StorageWatch(folder, 10).exceeded())
    folder.rmdir()
    await eventually(problem.done)
    assert isinstance(problem.exception(), FileNotFoundError)
