"""Whatever bytes a run's sandbox gives for a folder, they become files and folders of that folder, or an error of the artifact."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.runtimes import artifact_copy
from topics.environment import archive

KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)


def tar(*entries: tuple[str, bytes, bytes], **headers: Any) -> bytes:
    """Entries by name, type and content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", **headers) as file:
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
        tar(("a", tarfile.REGTYPE, b"x"), format=tarfile.PAX_FORMAT, pax_headers={"global": "1"}),
    ],
)
def test_anything_else_is_an_error_of_the_artifact(tmp_path: Path, left: bytes) -> None:
    with pytest.raises(archive.ArchiveError):
        unpacked(left, tmp_path)


def test_the_map_of_a_sparse_file_is_never_read(tmp_path: Path) -> None:
    """It would be a list of as many numbers as the run likes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as file:
        header = tarfile.TarInfo("a")
        header.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
        header.size = 512
        file.addfile(header, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
    with pytest.raises(archive.ArchiveError, match="sparse"):
        unpacked(made.getvalue(), tmp_path)


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
    assert excluded.match("./" + "a/" * 100_000) is None
