"""Whatever bytes a run's sandbox gives for a folder, they become files and folders of that folder, or an error of the artifact."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtimes import artifact_copy
from topics.environment import archive

KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)


def tar(*entries: tuple[str, bytes, bytes], form: int = tarfile.GNU_FORMAT, **headers: Any) -> bytes:
    """Entries by name, type and content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form, **headers) as file:
        for name, kind, data in entries:
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, "../../etc/passwd"
            header.size = len(data) if kind == tarfile.REGTYPE else 0
            file.addfile(header, io.BytesIO(data))
    return made.getvalue()


def unpacked(data: bytes, folder: Path, exclude: Sequence[str] = ()) -> set[str]:
    """The files and folders that arrive. Raises ArchiveError."""
    (folder / "packed").write_bytes(data)
    chunks = b"".join(artifact_copy._chunks(folder / "packed", artifact_copy._FOLDER, exclude))
    archive.unpack_folder(io.BytesIO(chunks), folder / "target")
    assert {path.name for path in folder.iterdir()} == {"packed", "target"}
    found = list((folder / "target").rglob("*"))
    assert not any(path.is_symlink() or not (path.is_file() or path.is_dir()) for path in found)
    return {str(path.relative_to(folder / "target")) for path in found}


def test_files_and_folders_arrive_and_links_and_devices_are_left_out(tmp_path: Path) -> None:
    left = tar(
        ("./", tarfile.DIRTYPE, b""),
        ("./a", tarfile.DIRTYPE, b""),
        ("./a/" + "n" * 180, tarfile.REGTYPE, b"x" * 1000),
        *((f"./{kind!r}", kind, b"") for kind in KINDS[2:]),
    )
    assert unpacked(left, tmp_path) == {"a", "a/" + "n" * 180}


@pytest.mark.parametrize(
    "left",
    [
        b"",
        b"no tar" * 100,
        tar(("../x", tarfile.REGTYPE, b"x")),
        tar(("missing/x", tarfile.REGTYPE, b"x")),
        tar(("a", tarfile.REGTYPE, b"x"), ("a/b", tarfile.REGTYPE, b"x")),
        tar(("a", tarfile.REGTYPE, b"x"), ("a", tarfile.REGTYPE, b"y")),
        tar(("a", tarfile.REGTYPE, b"x" * 9000))[:2000],
        tar(("a", tarfile.GNUTYPE_SPARSE, b"")),
        tar(("a", tarfile.REGTYPE, b"x"), form=tarfile.PAX_FORMAT, pax_headers={"global": "1"}),
    ],
)
def test_anything_else_is_an_error_of_the_artifact(tmp_path: Path, left: bytes) -> None:
    with pytest.raises(archive.ArchiveError):
        unpacked(left, tmp_path)


def pax(header: bytes) -> bytes:
    """A tar whose first header is one of the pax format."""
    first = tarfile.TarInfo("pax")
    first.type, first.size = tarfile.XHDTYPE, len(header)
    return first.tobuf() + header.ljust(-(-len(header) // 512) * 512, b"\0") + tar(("a", tarfile.REGTYPE, b"x"))


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"11 size=-1\n", id="a negative size, of which the read never ends"),
        pytest.param(b"1" * 2048, id="digits, in which Python searches in quadratic time without another thread"),
        pytest.param(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n", id="a map of any length"),
    ],
)
def test_headers_of_the_pax_format_are_never_read(tmp_path: Path, header: bytes) -> None:
    left = tmp_path / "packed"
    left.write_bytes(pax(header))
    with pytest.raises(archive.ArchiveError, match="only the GNU format is read"):
        list(islice(artifact_copy._chunks(left, artifact_copy._FOLDER), 1000))


def test_nested_names_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Each waits in memory for the entry that it names."""
    name = tarfile.TarInfo("name")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, artifact_copy.NAME_LIMIT + 1
    with pytest.raises(archive.ArchiveError, match="a name of more than"):
        unpacked((name.tobuf(tarfile.GNU_FORMAT) + b"n" * 32768) * 20, tmp_path)


def test_links_that_are_left_out_count_as_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_copy, "ENTRIES_LIMIT", 10)
    with pytest.raises(archive.ArchiveError, match="more than 10 files, folders and links"):
        unpacked(tar(*[("link", tarfile.SYMTYPE, b"")] * 11), tmp_path)


NAMES = st.text(st.sampled_from("ab./"), min_size=1, max_size=6)


@given(
    st.lists(st.tuples(NAMES, st.sampled_from(KINDS), st.binary(max_size=20)), max_size=5),
    st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=3)), max_size=3),
)
def test_no_tar_leads_out_of_the_folder(
    entries: list[tuple[str, bytes, bytes]], changes: list[tuple[int, bytes]]
) -> None:
    left = bytearray(tar(*entries))
    for place, data in changes:
        left[place : place + len(data)] = data
    with tempfile.TemporaryDirectory() as folder:
        try:
            unpacked(bytes(left), Path(folder))
        except archive.ArchiveError:
            return


TREE = ("build/x/f", "a/build/g", "a/node_modules/y/z", "a/k.pyc", "k.pyc", ".hidden", "a.b/c", "buildx")
PATTERNS = ("build", "./build", "build/", "a/build", "/build", "*.pyc", "b*d", "./*", ".", "?", "a*", "*/k.pyc", "build/*", "x/f",
            "**/k.pyc", "./a/./build", "a?b", "build?", "*x*", ".h*", "a//build")  # fmt: skip


@pytest.mark.contract
@pytest.mark.parametrize("exclude", [*((pattern,) for pattern in PATTERNS), ("*.pyc", "x"), ()])
def test_patterns_leave_out_what_tar_leaves_out(tmp_path: Path, exclude: tuple[str, ...]) -> None:
    """Also if a program in the place of tar packs everything."""
    source, whole, less = tmp_path / "source", tmp_path / "whole", tmp_path / "less"
    for name in TREE:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    arrived = []
    for folder, options in ((whole, ()), (less, [f"--exclude={pattern}" for pattern in exclude])):
        folder.mkdir()
        packed = subprocess.run(
            ["tar", "-cf", "-", *options, "-C", source, "."], capture_output=True, check=True
        ).stdout
        arrived.append(unpacked(packed, folder, exclude if folder is whole else ()))
    assert arrived[0] == arrived[1]
    assert exclude or len(arrived[0]) > len(TREE)


def test_a_pattern_takes_linear_time_on_any_name() -> None:
    excluded = artifact_copy.excluding(["*a*a*a*b", "a?a?a?c"])
    began = time.process_time()
    assert excluded.match("./" + "a/" * 100_000) is None
    assert time.process_time() - began < 6.0
