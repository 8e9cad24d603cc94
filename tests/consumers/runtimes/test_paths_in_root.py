"""Paths inside one folder: nothing in it leads out."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from consumers.runtimes.paths_in_root import make_folders, open_in_root
from tests.consumers.runtimes.bare import run_bare


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    folder = tmp_path / "root"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)
    assert {path.name for path in tmp_path.iterdir()} == {"root", "outside"}
    assert (tmp_path / "outside").read_text() == "secret"


def content(root: int, path: str) -> bytes:
    with os.fdopen(open_in_root(root, path, os.O_RDONLY), "rb") as file:
        return file.read()


def test_absolute_paths_links_and_dots_stay_in_the_folder(root: int, tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir()
    (tmp_path / "root/etc/file").write_text("inside")
    (tmp_path / "root/link").symlink_to("/etc")
    (tmp_path / "root/up").symlink_to("../../../../etc/file")
    (tmp_path / "root/out").symlink_to(tmp_path / "outside")
    for path in ("/etc/file", "etc/../etc/file", "link/file", "up", "../../link/../etc/file"):
        assert content(root, path) == b"inside"
    with pytest.raises(FileNotFoundError):
        content(root, "out")
    with pytest.raises(FileNotFoundError):
        content(root, str(tmp_path / "outside"))


def test_magic_links_and_mounts_are_refused() -> None:
    descriptor = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError) as caught:
            open_in_root(descriptor, "proc/self/status", os.O_RDONLY)
    finally:
        os.close(descriptor)
    assert caught.value.errno == errno.EXDEV
    descriptor = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError) as caught:
            open_in_root(descriptor, "root/etc/passwd", os.O_RDONLY)
    finally:
        os.close(descriptor)
    assert caught.value.errno in (errno.ELOOP, errno.EXDEV)


def test_files_are_made_with_their_mode_and_closed_on_exec(root: int, tmp_path: Path) -> None:
    descriptor = open_in_root(root, "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert stat.S_IMODE((tmp_path / "root/new").stat().st_mode) == 0o640


def test_the_empty_path_is_the_folder_and_a_zero_byte_an_error(root: int) -> None:
    descriptor = open_in_root(root, "", os.O_PATH)
    assert os.path.sameopenfile(descriptor, root)
    os.close(descriptor)
    with pytest.raises(OSError, match="zero byte"):
        open_in_root(root, "a\0b", os.O_RDONLY)


def test_missing_folders_are_made_behind_links_inside(root: int, tmp_path: Path) -> None:
    (tmp_path / "root/a").mkdir()
    (tmp_path / "root/link").symlink_to("/a")
    os.close(make_folders(root, "link/b/../c/./d", 0o711))
    os.close(make_folders(root, "/link/b", 0o711))
    assert sorted(path.name for path in (tmp_path / "root/a").iterdir()) == ["b", "c"]
    assert stat.S_IMODE((tmp_path / "root/a/c/d").stat().st_mode) == 0o711


@pytest.mark.parametrize("path", ["file/x", "dangling/x", "dangling", "out/x/y"])
def test_folders_are_not_made_where_something_else_lies(root: int, tmp_path: Path, path: str) -> None:
    (tmp_path / "root/file").write_text("")
    (tmp_path / "root/dangling").symlink_to("/nowhere")
    (tmp_path / "root/out").symlink_to(tmp_path / "new")
    with pytest.raises(NotADirectoryError):
        make_folders(root, path, 0o755)
    assert {path.name for path in (tmp_path / "root").iterdir()} == {"file", "dangling", "out"}


parts = st.sampled_from(["a", "b", "..", ".", "", "link", "up"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(parts, max_size=8).map("/".join), st.booleans())
def test_folders_are_only_made_inside(root: int, tmp_path: Path, path: str, is_absolute: bool) -> None:
    for name, target in (("link", "/a"), ("up", "../..")):
        if not (tmp_path / "root" / name).is_symlink():
            (tmp_path / "root" / name).symlink_to(target)
    try:
        folder = make_folders(root, f"/{path}" if is_absolute else path, 0o755)
    except NotADirectoryError:
        return
    found = Path(f"/proc/self/fd/{folder}").readlink()
    os.close(folder)
    assert found.is_relative_to(tmp_path / "root")


@pytest.mark.contract
def test_a_forked_child_without_packages_can_use_it(tmp_path: Path) -> None:
    code = f"""
import os
from consumers.runtimes.paths_in_root import make_folders
make_folders(os.open({str(tmp_path)!r}, os.O_RDONLY), "../a/b", 0o755)
"""
    assert run_bare(code).stderr == ""
    assert (tmp_path / "a/b").is_dir()
