"""Layers as hostile tars: nothing outside of the layer's folder changes, and what is inside can be mounted and deleted."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from consumers.runtimes import session_folder
from consumers.runtimes.base import HOST_DISK_FULL, SandboxError
from consumers.runtimes.images import layers
from consumers.runtimes.images.layers import Budget
from tests.consumers.runtimes.bare import run_bare
from tests.consumers.runtimes.images import making
from tests.consumers.runtimes.images.making import Entry, File, Folder, HardLink, Link, Other
from tests.small_disks import needs_root, small_disk
from topics.types.errors import InputError

pytestmark = pytest.mark.contract

BLOCK = 512
OUTSIDE = "kept"


class Place:
    """A folder with a file that no layer may change, and a layer beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layer = folder / "layer"
        self.layer.mkdir()
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "file").write_text(OUTSIDE)

    async def unpack(
        self,
        content: Mapping[str, Entry] | bytes,
        *,
        compress: Callable[[bytes], bytes] = making.gzipped,
        diff_id: str | None = None,
        budget: Budget | None = None,
    ) -> Path:
        tar = content if isinstance(content, bytes) else making.tar(content)
        file = self.folder / "blob"
        file.write_bytes(compress(tar))
        descriptor = os.open(file, os.O_RDONLY)
        try:
            await layers.unpack("image", descriptor, self.layer, diff_id or making.digest(tar), budget or Budget())
        finally:
            os.close(descriptor)
        return self.layer

    async def refused(self, content: Mapping[str, Entry] | bytes, match: str, **how: object) -> None:
        with pytest.raises(InputError, match=match):
            await self.unpack(content, **how)  # type: ignore[arg-type] # as for `unpack`


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Nothing outside of the layer changes."""
    yield Place(tmp_path)
    assert (tmp_path / "outside" / "file").read_text() == OUTSIDE
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]
    assert {path.name for path in tmp_path.iterdir()} <= {"layer", "outside", "blob", "small", "merged", "lower"}


def pax(headers: dict[str, str], name: str = "file", data: bytes = b"") -> bytes:
    """A tar of one file with extended headers."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        header = tarfile.TarInfo(name)
        header.pax_headers, header.size = headers, len(data)
        archive.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


def without_end(tar: bytes) -> bytes:
    """A tar without the zeros behind its last entry, which end with a block of their own."""
    return tar.rstrip(b"\0") + bytes(-len(tar.rstrip(b"\0")) % BLOCK)


@pytest.mark.parametrize("compress", [making.plain, making.gzipped, making.zstandard])
async def test_files_are_as_the_tar_has_them(place: Place, compress: Callable[[bytes], bytes]) -> None:
    data = bytes(range(256)) * 20_000
    layer = await place.unpack(
        {
            "bin": Folder(0o700),
            "bin/tool": File(data, 0o751, mtime=1_600_000_000),
            "link": Link("/etc/passwd"),
            "twin": HardLink("./bin/../bin/tool"),
            "a/b/c": b"text",
        },
        compress=compress,
    )
    assert (layer / "bin/tool").read_bytes() == data
    assert stat.S_IMODE((layer / "bin/tool").stat().st_mode) == 0o751
    assert (layer / "bin/tool").stat().st_mtime == 1_600_000_000
    assert (layer / "bin").stat().st_mtime == 1_700_000_000
    assert (layer / "link").readlink() == Path("/etc/passwd")
    assert (layer / "twin").samefile(layer / "bin/tool")
    assert (layer / "a/b/c").read_text() == "text"
    assert stat.S_IMODE(layer.stat().st_mode) == stat.S_IMODE((layer / "a").stat().st_mode) == 0o755


async def test_a_stream_of_several_gzip_members_is_one_tar(place: Place) -> None:
    tar = making.tar({"a": bytes(100_000), "b": b"b"})
    layer = await place.unpack(tar, compress=lambda data: making.gzipped(data[:70_000]) + making.gzipped(data[70_000:]))
    assert (layer / "b").read_bytes() == b"b"


async def test_no_path_leads_out_of_the_layer(place: Place) -> None:
    up = "../" * 20
    out = str(place.outside)
    layer = await place.unpack(
        {
            "../x": b"1",
            "/abs": b"2",
            f"{up}{out}/y": b"3",
            "root": Link("/"),
            "root/in": b"4",
            "up": Link(up),
            "up/inner": b"5",
            "away": Link(out),
            f"{out.lstrip('/')}": Folder(),
            "away/file": b"6",
            "direct": Link(f"{out}/file"),
            "direct2": HardLink(f"{up}{out}/file"),
        }
    )
    found = {name: (layer / name).read_bytes() for name in ("x", "abs", "in", "inner")}
    assert found == {"x": b"1", "abs": b"2", "in": b"4", "inner": b"5"}
    inside = layer / out.lstrip("/")
    assert {path.name for path in inside.iterdir()} == {"y", "file"}
    assert (layer / "direct2").samefile(inside / "file")


async def test_a_file_takes_the_place_of_a_link_and_does_not_follow_it(place: Place) -> None:
    links = making.tar({"f": Link(str(place.outside / "file")), "d": Link(str(place.outside)), "g": Link("f")})
    layer = await place.unpack(without_end(links) + making.tar({"f": b"new", "d": Folder(0o700), "d/file": b"x"}))
    assert not (layer / "f").is_symlink()
    assert (layer / "f").read_bytes() == b"new"
    assert not (layer / "d").is_symlink()
    assert (layer / "d/file").read_bytes() == b"x"


@pytest.mark.parametrize(
    "target",
    [
        "../../outside/file",
        "/nothing",
        "folder",
        "folder/hard",
        "/",
        "link/x",
        "{outside}/file",
        "../../../../../../etc/passwd",
    ],
)
async def test_a_hard_link_can_only_be_to_a_file_of_the_layer(place: Place, target: str) -> None:
    entries: dict[str, Entry] = {"folder": Folder(), "link": Link("/etc/passwd")}
    await place.refused({**entries, "hard": HardLink(target.format(outside=place.outside))}, r"'hard'")


async def test_a_hard_link_to_a_symbolic_link_is_one_more_like_it(place: Place) -> None:
    layer = await place.unpack({"link": Link(str(place.outside / "file")), "hard": HardLink("link")})
    assert (layer / "hard").readlink() == place.outside / "file"


async def test_privileges_owners_and_attributes_are_dropped_and_all_can_be_deleted(place: Place) -> None:
    tar = pax({"SCHILY.xattr.user.overlay.redirect": "/etc", "SCHILY.xattr.security.capability": "x"})
    layer = await place.unpack(tar)
    assert os.listxattr(layer / "file") == []
    layer = await place.unpack(
        {
            "setuid": File(b"", 0o6755, uid=12345),
            "none": File(b"", 0),
            "closed": Folder(0),
            "closed/in": b"x",
            "tmp": Folder(0o3777),
            ".": Folder(0o500),
        }
    )
    modes = {name: stat.S_IMODE((layer / name).stat().st_mode) for name in ("setuid", "none", "closed", "tmp", ".")}
    assert modes == {"setuid": 0o755, "none": 0o600, "closed": 0o700, "tmp": 0o1777, ".": 0o700}
    assert (layer / "setuid").stat().st_uid == os.getuid()


async def test_devices_fifos_and_sockets_are_skipped(place: Place) -> None:
    types = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"s", b"V")
    layer = await place.unpack({f"special{index}": Other(kind) for index, kind in enumerate(types)} | {"f": b"f"})
    assert [path.name for path in layer.iterdir()] == ["f"]


async def test_later_entries_replace_files_by_folders_and_folders_by_files(place: Place) -> None:
    first = making.tar({"a": b"file", "b": Folder(), "b/deep/er": b"x", "c": Folder(), "c/stays": b"1", "d": Link("c")})
    second = making.tar({"a": Folder(), "a/in": b"2", "b": b"file", "c": Folder(0o711), "d": Folder()})
    layer = await place.unpack(without_end(first) + second)
    assert (layer / "a/in").read_bytes() == b"2"
    assert (layer / "b").read_bytes() == b"file"
    assert (layer / "c/stays").read_bytes() == b"1"
    assert not (layer / "d").is_symlink()


async def test_names_may_hold_any_bytes_but_zero(place: Place) -> None:
    names = ["new\nline", "caf\udce9", "-rf", "a b", "\u202e", "x" * 255]
    layer = await place.unpack({name: name.encode(errors="surrogateescape") for name in names})
    assert {os.fsencode(path.name): path.read_bytes() for path in layer.iterdir()} == {
        name.encode(errors="surrogateescape"): name.encode(errors="surrogateescape") for name in names
    }
    await place.refused(pax({"path": "a\0b"}), "zero byte|null byte|Invalid")


@pytest.mark.parametrize("name", ["d/" * 3000 + "f", "x" * 256])
async def test_a_path_that_linux_does_not_have_is_refused(place: Place, name: str) -> None:
    await place.refused({name: b""}, "File name too long")


async def test_deep_folders_can_be_deleted(place: Place) -> None:
    down: dict[str, Entry] = {"d/" * 1100: Folder(), "link": Link("d/" * 1100), "link/" + "e/" * 1100 + "f": b"x"}
    layer = await place.unpack(down)
    session_folder.delete(layer)
    assert not layer.exists()


async def test_whiteouts_take_the_form_that_overlayfs_reads(place: Place) -> None:
    layer = await place.unpack(
        {
            "etc/.wh.gone": b"",
            "opt/.wh..wh..opq": b"",
            ".wh..wh.plnk": Folder(),
            ".wh.kept": b"",
            "kept": b"wins",
            "made": Folder(),
            "made/new": b"new",
            ".wh.made": b"",
            "f": b"",
            "f2/.wh.x": b"",
        }
    )
    gone = (layer / "etc/gone").lstat()
    assert (stat.S_ISCHR(gone.st_mode), gone.st_rdev) == (True, 0)
    assert os.getxattr(layer / "opt", "user.overlay.opaque") == b"y"
    assert os.getxattr(layer / "made", "user.overlay.opaque") == b"y"
    assert (layer / "kept").read_bytes() == b"wins"
    assert {path.name for path in layer.iterdir()} == {"etc", "opt", "kept", "made", "f", "f2"}


async def test_the_mounted_layers_show_what_the_upper_one_left(place: Place, tmp_path: Path) -> None:
    old = ("etc/gone", "etc/stays", "opt/old", "made/old", "dir/old", "file", "kept")
    await place.unpack(dict.fromkeys(old, b"old"))
    place.layer.rename(tmp_path / "lower")
    place.layer.mkdir()
    marks = ("etc/.wh.gone", "opt/.wh..wh..opq", ".wh.made", ".wh.dir", ".wh.kept")
    await place.unpack(
        {**dict.fromkeys((*marks, "opt/new", "made/new"), b""), "kept": b"new", "file": Folder()},
    )
    (tmp_path / "merged").mkdir()
    shown = await asyncio.to_thread(mounted, tmp_path)
    if shown.returncode == CANT_MOUNT:
        pytest.skip(f"overlayfs can't be mounted here: {shown.stderr}")
    assert shown.stdout.split() == [
        *(".", "./etc", "./etc/stays", "./file", "./kept", "./made", "./made/new", "./opt", "./opt/new", "new"),
    ]


CANT_MOUNT = 77


def mounted(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `layer` over `lower` looks like."""
    script = (
        f'mount -t overlay overlay -o "userxattr,lowerdir=$1/layer:$1/lower" "$1/merged" || exit {CANT_MOUNT}; '
        'cd "$1/merged" && find . | LC_ALL=C sort && cat kept'
    )
    # If unshare itself can't, it ends with 1.
    command = ["sh", "-c", f'unshare -Urm true || exit {CANT_MOUNT}; exec unshare -Urm sh -c "$@"', "sh", script]
    return subprocess.run([*command, "sh", str(folder)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [".wh.", ".wh...", ".wh.."])
async def test_a_whiteout_names_a_file(place: Place, name: str) -> None:
    await place.refused({f"a/{name}": b""}, "names no file")


async def test_a_whiteout_below_a_file_hides_nothing(place: Place) -> None:
    layer = await place.unpack({"a/.wh.b": b"", "a": b"file", "l": Link("nowhere"), "l/.wh.b": b""})
    assert (layer / "a").read_bytes() == b"file"


async def test_another_digest_than_the_image_says_is_refused(place: Place) -> None:
    await place.refused({"a": b""}, "has the digest", diff_id=f"sha256:{'0' * 64}")


async def test_what_follows_the_tar_counts_for_the_digest(place: Place) -> None:
    tar = making.tar({"a": b"a"}) + b"more" * 100_000
    assert (await place.unpack(tar) / "a").read_bytes() == b"a"


@pytest.mark.parametrize("compress", [making.plain, making.gzipped, making.zstandard])
async def test_a_cut_layer_is_refused(place: Place, compress: Callable[[bytes], bytes]) -> None:
    tar = making.tar({"a": hashlib.shake_128(b"").digest(300_000), "b": b""})
    await place.refused(tar, "can't be read|digest|zstd", compress=lambda data: compress(data)[:-70_000])


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"\x1f\x8bnothing", b"\x28\xb5\x2f\xfdnothing", b"text" * 1000])
async def test_what_is_no_tar_is_refused(place: Place, data: bytes) -> None:
    await place.refused(making.tar({}), "can't be read|bad header|digest|zstd", compress=lambda _: data)


async def test_a_bad_header_between_entries_is_refused(place: Place) -> None:
    tar = without_end(making.tar({"a": b"a"})) + b"?" * BLOCK + making.tar({"b": b""})
    await place.refused(tar, "bad header")


def sparse(size: int) -> bytes:
    """A tar of one file without data, which says that it has `size` bytes (GNU sparse 1.0)."""
    tar = pax(
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": str(size)},
        data=b"0\n".ljust(BLOCK, b"\0"),
    )
    assert b"GNU.sparse.realsize" in tar
    return tar


async def test_a_sparse_file_counts_with_its_holes(place: Place) -> None:
    layer = await place.unpack(sparse(100_000), budget=Budget(bytes=100_000))
    assert (layer / "s").stat().st_size == 100_000
    await place.refused(sparse(1 << 50), "bytes unpacked")


async def test_a_gzip_bomb_ends_at_the_limit(place: Place) -> None:
    limit = 1 << 20
    await place.refused({"a": bytes(2 * limit)}, "bytes unpacked", budget=Budget(bytes=limit))
    bomb = making.tar({"a": b""}) + bytes(64 << 20)
    await place.refused(bomb, "its tar has more than", budget=Budget(bytes=limit, entries=10))


async def test_a_zstd_bomb_ends_at_the_limit(place: Place) -> None:
    bomb = making.tar({"a": b""}) + bytes(256 << 20)
    await place.refused(
        bomb, "its tar has more than", compress=making.zstandard, budget=Budget(bytes=1 << 20, entries=10)
    )


async def test_entries_and_the_folders_that_they_need_are_counted(place: Place) -> None:
    await place.refused({str(number): b"" for number in range(101)}, "files and folders", budget=Budget(entries=100))
    await place.refused({"a/" * 101: Folder()}, "files and folders", budget=Budget(entries=100))
    budget = Budget(bytes=10, entries=100)
    await place.unpack({"a/b/c": b"12345", "a/b/d": b"123"}, budget=budget)
    assert budget == Budget(bytes=2, entries=96)


@pytest.mark.parametrize("size", ["-512", "-1", "9" * 30])
async def test_a_size_that_no_file_has_is_refused(place: Place, size: str) -> None:
    await place.refused(pax({"size": size}, data=b"x"), "negative|unpacked|can't be read")


async def test_a_header_of_200_mb_is_refused(place: Place) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 200 << 20
    await place.refused(header.tobuf() + bytes(200 << 20), "a header of")


@pytest.mark.parametrize("mtime", ["nan", "inf", "-1", "1e300"])
async def test_a_time_that_no_file_system_keeps_becomes_zero(place: Place, mtime: str) -> None:
    layer = await place.unpack(pax({"mtime": mtime}))
    assert (layer / "file").stat().st_mtime == 0


@needs_root
async def test_a_full_disk_is_the_hosts_fault(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "FREE_BYTES", 0)
    with small_disk(place.folder / "small", 4) as small:
        shutil.rmtree(place.layer)
        place.layer = small / "layer"
        place.layer.mkdir()
        with pytest.raises(SandboxError) as caught:
            await place.unpack({"a": bytes(8 << 20)})
    assert caught.value.code == HOST_DISK_FULL
    place.layer = place.folder / "layer"


def test_the_program_has_no_privileges_and_little_memory() -> None:
    code = """
import resource
from pathlib import Path
from consumers.runtimes.images.unpack import confine
confine(60, 1 << 20)
status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
print(*(status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb", "NoNewPrivs")))
print(*(resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)))
"""
    ended = run_bare(code)
    assert ended.stdout == f"{'0' * 16} {'0' * 16} {'0' * 16} {'0' * 16} 1\n{1 << 30} {1 << 20} 65\n", ended.stderr
