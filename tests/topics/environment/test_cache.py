"""The user's cache, on real folders and with real processes that race and die."""

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.small_disks import fill, needs_root, small_disk
from tests.waiting import until
from topics.environment import cache

DEADLINE_S = 20.0
NOBODY = 65534
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))


def whole(entry: Path) -> bool:
    return (entry / "tool").is_file() and (entry / "tool").read_text() == "works"


def build(folder: Path) -> None:
    (folder / "tool").write_text("works")


def never(folder: Path) -> None:
    pytest.fail(f"{folder} was built although the entry is whole")


def install(builder: Callable[[Path], None], said: list[str] | None = None) -> Path:
    return cache.installed("tool-1", builder, whole=whole, announce=(said if said is not None else []).append)


def test_an_entry_is_built_once_and_then_found(tmp_path: Path) -> None:
    entry = install(build)
    assert entry == tmp_path / "cache" / "tool-1"
    assert whole(entry)
    assert install(never) == entry


def test_the_cache_lies_where_the_platform_keeps_caches_when_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLAR_CACHE")
    assert cache.root().name == "polar"
    assert cache.root().is_absolute()


def test_a_broken_entry_heals() -> None:
    entry = install(build)
    (entry / "tool").write_text("half")
    said: list[str] = []
    assert whole(install(build, said))
    assert said == [f"{entry} was broken and is replaced"]


def _replace_unprivileged(root: Path) -> None:
    """In a process of its own: root could delete files from read-only folders."""
    if os.geteuid() == 0:
        os.chown(root, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    os.environ["POLAR_CACHE"] = str(root)

    def read_only(folder: Path) -> None:
        (folder / "lib").mkdir()
        (folder / "lib" / "half").touch()
        build(folder)
        (folder / "lib").chmod(0o555)
        folder.chmod(0o555)

    entry = install(read_only)
    (entry / "tool").write_text("half")
    assert whole(install(read_only))
    with pytest.raises(cache.CacheError, match="came out incomplete"):
        cache.installed("tool-1", read_only, whole=lambda _: False, announce=lambda _: None)


def test_a_read_only_entry_is_replaced_by_a_user_without_privileges() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "cache"
        root.mkdir()
        process = SPAWN.Process(target=_replace_unprivileged, args=(root,))
        process.start()
        process.join(DEADLINE_S)
        assert process.exitcode == 0
        assert {path.name for path in root.iterdir()} == {"tool-1", ".tool-1.lock"}


def test_a_build_that_fails_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "tool").write_text("ha")
        raise ConnectionError("the line broke")

    with pytest.raises(ConnectionError):
        install(fails)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".tool-1.lock"]
    assert whole(install(build))


def test_a_build_that_comes_out_incomplete_is_refused_and_the_old_entry_stays() -> None:
    entry = install(build)
    (entry / "tool").write_text("old")
    with pytest.raises(cache.CacheError, match="tool-1 came out incomplete"):
        install(lambda folder: (folder / "tool").touch())
    assert (entry / "tool").read_text() == "old"


def test_a_cache_that_cannot_be_written_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "file"))
    with pytest.raises(cache.CacheError, match="set POLAR_CACHE to a folder that you can write to"):
        install(build)


@pytest.mark.contract
@needs_root
def test_a_full_disk_is_named_and_leaves_nothing_and_with_room_the_entry_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        monkeypatch.setenv("POLAR_CACHE", str(disk))
        fill(disk / "ballast")
        with pytest.raises(cache.CacheError, match=f"the disk of {disk} is full .* or set POLAR_CACHE"):
            install(build)
        assert {path.name for path in disk.iterdir()} == {"ballast", ".tool-1.lock"}
        (disk / "ballast").unlink()
        assert whole(install(build))


def _install_slowly(builds: Path, waiting: Event, go: Event) -> None:
    """In a process of its own: note each build in `builds`, and finish it only when told."""

    def slow(folder: Path) -> None:
        with builds.open("a") as file:
            file.write(f"{os.getpid()}\n")
        (folder / "half").touch()
        assert go.wait(DEADLINE_S)
        build(folder)

    def announce(_line: str) -> None:
        waiting.set()

    cache.installed("tool-1", slow, whole=whole, announce=announce)


def test_two_processes_build_once(tmp_path: Path) -> None:
    waiting, go = SPAWN.Event(), SPAWN.Event()
    both = [SPAWN.Process(target=_install_slowly, args=(tmp_path / "builds", waiting, go)) for _ in range(2)]
    for process in both:
        process.start()
    assert waiting.wait(DEADLINE_S), "neither process waited for the other"
    go.set()
    for process in both:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in both] == [0, 0]
    assert len((tmp_path / "builds").read_text().splitlines()) == 1


def test_a_builder_killed_at_work_hinders_nobody(tmp_path: Path) -> None:
    waiting, go = SPAWN.Event(), SPAWN.Event()
    builder = SPAWN.Process(target=_install_slowly, args=(tmp_path / "builds", waiting, go))
    builder.start()
    until((tmp_path / "cache" / ".tool-1.partial" / "half").exists, DEADLINE_S)
    entry: list[Path] = []
    waits = threading.Event()

    def succeed() -> None:
        entry.append(cache.installed("tool-1", build, whole=whole, announce=lambda _: waits.set()))

    successor = threading.Thread(target=succeed)
    successor.start()
    assert waits.wait(DEADLINE_S)
    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join(DEADLINE_S)
    successor.join(DEADLINE_S)
    assert whole(entry[0])
    assert not (entry[0] / "half").exists()
