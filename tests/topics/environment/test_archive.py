"""An archive carries a tree of files, the same bytes for the same tree, and is unpacked into its target alone."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.environment import archive
from topics.environment.archive import ArchiveError, list_file, list_folder, unpack_file, unpack_folder

NAMES = (
    st.binary(min_size=1, max_size=120)
    .map(os.fsdecode)
    .filter(lambda name: not {"\0", "/"} & {*name} and name not in (".", ".."))
)
"""Any bytes, as Linux has it."""
CONTENT = st.tuples(st.binary(max_size=1500), st.booleans())
"""Bytes of a file, and whether it is executable."""
TREES = st.recursive(CONTENT, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=8)
FOLDERS = st.dictionaries(NAMES, TREES, max_size=4)


def write(path: Path, tree: Any) -> None:
    if isinstance(tree, dict):
        path.mkdir()
        for name in reversed(tree):
            write(path / name, tree[name])
        return
    data, is_executable = tree
    path.write_bytes(data)
    path.chmod(0o711 if is_executable else 0o640)


def read(path: Path) -> object:
    if path.is_dir():
        return {each.name: read(each) for each in path.iterdir()}
    return path.read_bytes(), path.stat().st_mode & 0o777 == 0o755


def packed(folder: Path) -> bytes:
    return b"".join(list_folder(folder).chunks())


@given(tree=FOLDERS)
def test_a_tree_comes_back_and_equal_trees_give_equal_bytes(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, object]
) -> None:
    top = tmp_path_factory.mktemp("trees")
    write(top / "a", tree)
    write(top / "b", dict(reversed(tree.items())))
    os.utime(top / "b", (0, 0))
    data = packed(top / "a")
    assert packed(top / "b") == data
    assert list_folder(top / "a").size == len(data)
    unpack_folder(io.BytesIO(data), top / "c")
    assert read(top / "c") == tree
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert len(tar.getmembers()) == len(list_folder(top / "a").entries), "any tar reads it"


def test_a_file_is_packed_by_itself_and_replaces_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o700)
    data = b"".join(list_file(tmp_path / "run").chunks())
    (tmp_path / "there").write_text("something longer than it")
    unpack_file(io.BytesIO(data), tmp_path / "there")
    assert (tmp_path / "there").read_text() == "#!/bin/sh\n"
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o755


def test_a_change_right_after_the_arrival_has_another_second_in_its_time(tmp_path: Path) -> None:
    """Python compares whole seconds and sizes to find out whether a module it has compiled is still the same."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "module.py").write_text("x = 1")
    unpack_folder(io.BytesIO(b"".join(list_folder(source).chunks())), tmp_path / "target")
    arrived = int((tmp_path / "target" / "module.py").stat().st_mtime)
    (tmp_path / "target" / "module.py").write_text("x = 2")
    assert arrived < int((tmp_path / "target" / "module.py").stat().st_mtime)


def test_a_folder_is_unpacked_beside_what_is_there(tmp_path: Path) -> None:
    for name in ("new/sub", "there/sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "new/sub/both").write_text("new")
    (tmp_path / "there/sub/both").write_text("old, and longer")
    (tmp_path / "there/sub/kept").write_text("kept")
    unpack_folder(io.BytesIO(packed(tmp_path / "new")), tmp_path / "there")
    assert {path.name: path.read_text() for path in (tmp_path / "there/sub").iterdir()} == {
        "both": "new",
        "kept": "kept",
    }


# --- what can't be packed


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("file"), r"sub/odd is a symbolic link, .*by an action of type exec \(ln -s\)"),
        (lambda path: path.symlink_to("/"), "sub/odd is a symbolic link"),
        (fifo, "sub/odd is a named pipe, .*remove it"),
        (unix_socket, "sub/odd is a socket"),
    ],
    ids=["link", "link to a folder", "fifo", "socket"],
)
def test_nothing_but_files_and_folders_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    Path("top/sub").mkdir(parents=True)
    Path("top/sub/file").touch()
    make(Path("top/sub/odd"))
    with pytest.raises(ArchiveError, match=reason):
        list_folder(Path("top"))
    if not Path("top/sub/odd").is_symlink():
        with pytest.raises(ArchiveError, match="is no regular file"):
            list_file(Path("top/sub/odd"))


def test_a_folder_is_no_file_and_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for of, path, reason in (
        (list_file, tmp_path, "is no regular file"),
        (list_folder, tmp_path / "file", "is no folder"),
        (list_file, tmp_path / "none", "can't be read: No such file"),
        (list_folder, tmp_path / "none", "can't be read: No such file"),
    ):
        with pytest.raises(ArchiveError, match=reason):
            of(path)


def test_limits_are_checked_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(archive, "ENTRIES_LIMIT", 3)
    data = packed(tmp_path)
    monkeypatch.setattr(archive, "ENTRIES_LIMIT", 2)
    with pytest.raises(ArchiveError, match="holds more than 2 files and folders; upload less"):
        list_folder(tmp_path)
    with pytest.raises(ArchiveError, match="holds more than 2 files and folders"):
        unpack_folder(io.BytesIO(data), tmp_path / "out")


def test_a_folder_larger_than_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(archive.BYTES_LIMIT)  # no block of it is on the disk
    for of, path in ((list_folder, tmp_path), (list_file, tmp_path / "large")):
        with pytest.raises(ArchiveError, match="holds more than 1024 MiB; upload less"):
            of(path)


@pytest.mark.parametrize("change", ["grow", "shrink", "remove", "link"])
def test_a_file_that_changes_while_it_is_packed_is_an_error(tmp_path: Path, change: str) -> None:
    file = tmp_path / "file"
    file.write_text("as listed")
    tree = list_folder(tmp_path)
    if change in ("remove", "link"):
        file.unlink()
    else:
        file.write_text("longer than listed" if change == "grow" else "short")
    if change == "link":
        file.symlink_to("/etc/passwd")
    with pytest.raises(ArchiveError, match=r"file (has changed while it was read|can't be read)"):
        list(tree.chunks())


@pytest.mark.parametrize("change", ["content", "replaced", "name", "mode", "more"])
def test_a_changed_tree_has_another_fingerprint(tmp_path: Path, change: str) -> None:
    file = tmp_path / "file"
    file.write_text("a")
    before = list_folder(tmp_path).fingerprint()
    assert list_folder(tmp_path).fingerprint() == before
    found = file.stat()
    match change:
        case "content":
            os.utime(file, ns=(0, found.st_mtime_ns + 1))
        case "replaced":
            (tmp_path / "new").write_text("b")
            os.utime(tmp_path / "new", ns=(0, found.st_mtime_ns))
            (tmp_path / "new").replace(file)
        case "name":
            file.rename(tmp_path / "other")
        case "mode":
            file.chmod(0o755)
        case "more":
            (tmp_path / "empty").mkdir()
    assert list_folder(tmp_path).fingerprint() != before


# --- what isn't unpacked


def tar(*entries: tuple[str, bytes, str]) -> bytes:
    """An archive of entries that Python's own tarfile writes: name, type, content or target of a link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as made:
        for name, kind, text in entries:
            header = tarfile.TarInfo(name)
            header.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                header.linkname = text
                made.addfile(header)
            else:
                header.size = len(text)
                made.addfile(header, io.BytesIO(text.encode()))
    return out.getvalue()


FILE, FOLDER = tarfile.REGTYPE, tarfile.DIRTYPE
LONG = "n" * 300


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tar(("/etc/x", FILE, "")), "names are relative"),
        (tar(("../x", FILE, "")), "names are relative"),
        (tar(("a", FOLDER, ""), ("a/../../x", FILE, "")), "names are relative"),
        (tar(("./a", FILE, "")), "names are relative"),
        (tar(("a", FOLDER, ""), ("a//b", FILE, "")), "names are relative"),
        (tar((f"../{LONG}", FILE, "")), "names are relative"),
        (tar(("a", FILE, "1"), ("a", FILE, "2")), "has 'a' twice"),
        (tar(("a", FOLDER, ""), ("a", FILE, "2")), "has 'a' twice"),
        (tar(("a/b", FILE, "")), "'a' isn't a folder that comes before it"),
        (tar(("a", FILE, ""), ("a/b", FILE, "")), "'a' isn't a folder that comes before it"),
        (tar(("a", tarfile.SYMTYPE, "/etc")), "neither a file nor a folder"),
        (tar(("a", FILE, ""), ("b", tarfile.LNKTYPE, "a")), "neither a file nor a folder"),
        (tar(("a", tarfile.CHRTYPE, "")), "neither a file nor a folder"),
        (tar(("a", tarfile.BLKTYPE, "")), "neither a file nor a folder"),
        (tar(("a", tarfile.FIFOTYPE, "")), "neither a file nor a folder"),
        (tar(("a", tarfile.GNUTYPE_SPARSE, "")), "neither a file nor a folder"),
        (tar(("a", tarfile.XHDTYPE, "19 path=../../evil\n")), "neither a file nor a folder"),
        (tar(("a", tarfile.GNUTYPE_LONGNAME, "x" * 3000)), "neither a file nor a folder"),
        (tar(("a", tarfile.GNUTYPE_LONGNAME, "x")) + tar(), "names are relative|ends with a name"),
        (tar(("a", FILE, "text"))[:600], "ends too early"),
        (tar(("a", FILE, "text"))[:1024], "ends too early"),
        (b"", "ends too early"),
        (b"\x80" * 512, "bad header"),
        (b"#!/bin/sh\n" * 100, "bad header"),
    ],
)  # fmt: skip
def test_what_packing_does_not_make_is_refused_and_nothing_lies_outside(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    with pytest.raises(ArchiveError, match=reason):
        unpack_folder(io.BytesIO(data), tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@given(data=st.data())
def test_damaged_bytes_are_an_error_or_another_tree_inside(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    top = tmp_path_factory.mktemp("damaged")
    whole = bytearray(tar(("a", FOLDER, ""), (f"a/{LONG}", FILE, "text"), ("b", FILE, "x" * 600)))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    try:
        unpack_folder(io.BytesIO(whole), top / "in")
    except (ArchiveError, OSError):
        pass
    assert [path.name for path in top.iterdir()] == ["in"]
    assert not any(path.is_symlink() for path in top.rglob("*"))


@pytest.mark.parametrize("data", [tar(), tar(("a", FOLDER, "")), tar(("a", FILE, ""), ("b", FILE, ""))])
def test_an_archive_of_one_file_holds_one_file(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArchiveError, match="holds"):
        unpack_file(io.BytesIO(data), tmp_path / "file")


@pytest.mark.parametrize("links", [{"target": "out"}, {"target/sub": "out"}, {"target/sub/file": "out/kept"}])
def test_no_link_at_the_target_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/kept").write_text("kept")
    for link, to in links.items():
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        Path(link).symlink_to(tmp_path / to)
    with pytest.raises(OSError, match=r"symbolic link"):
        unpack_folder(io.BytesIO(tar(("sub", FOLDER, ""), ("sub/file", FILE, "new"))), Path("target"))
    assert [path.name for path in Path("out").iterdir()] == ["kept"]
    assert Path("out/kept").read_text() == "kept"
