"""Images that tests make, written as OCI layouts without any other tool."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cramjam

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
FOREIGN_LAYER = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
PROGRAMS = (
    *("bash", "cat", "chmod", "chown", "cp", "dirname", "env", "head", "id", "ln", "ls", "mkdir", "mkfifo", "mv"),
    *("readlink", "rm", "sleep", "stat", "tail", "tee", "touch", "true", "wc"),
)


@dataclass(frozen=True)
class Folder:
    """An entry of a layer."""

    mode: int = 0o755


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class HardLink:
    """A hard link to a path of the layer."""

    target: str


@dataclass(frozen=True)
class File:
    """A file with other than the usual permissions, owner or time."""

    data: bytes
    mode: int = 0o644
    uid: int = 0
    mtime: int = 1_700_000_000


@dataclass(frozen=True)
class Other:
    """A device, a fifo or a socket, by the type of its tar header."""

    type: bytes


Entry = bytes | File | Folder | Link | HardLink | Other
Layer = Mapping[str, Entry] | bytes
"""Entries by path, in their order; or the bytes of a tar."""


@dataclass
class Blobs:
    """The blobs of an image by digest, its manifest's bytes, and its configuration's digest."""

    manifest: bytes
    config_digest: str
    diff_ids: list[str]
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def manifest_digest(self) -> str:
        return digest(self.manifest)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar(entries: Mapping[str, Entry]) -> bytes:
    """A layer's tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in entries.items():
            header, data = _header(path, entry)
            archive.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


def _header(path: str, entry: Entry) -> tuple[tarfile.TarInfo, bytes]:
    header = tarfile.TarInfo(path)
    header.mtime = 1_700_000_000
    data = b""
    match entry:
        case bytes():
            data = entry
        case File():
            data, header.mode, header.uid, header.mtime = entry.data, entry.mode, entry.uid, entry.mtime
        case Folder():
            header.type, header.mode = tarfile.DIRTYPE, entry.mode
        case Link():
            header.type, header.linkname, header.mode = tarfile.SYMTYPE, entry.target, 0o777
        case HardLink():
            header.type, header.linkname = tarfile.LNKTYPE, entry.target
        case Other():
            header.type = entry.type
    header.size = len(data)
    return header, data


def plain(data: bytes) -> bytes:
    return data


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def zstandard(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


_SUFFIX: Mapping[Callable[[bytes], bytes], str] = {plain: "", gzipped: "+gzip", zstandard: "+zstd"}


def image(
    layers: Sequence[Layer] = (),
    config: Mapping[str, Any] | None = None,
    *,
    compress: Callable[[bytes], bytes] = gzipped,
    diff_ids: Sequence[str] | None = None,
    architecture: str = "",
) -> Blobs:
    """An image in memory. `config`: its part `config`, such as `Env`. `diff_ids`: others than the layers really have.

    `architecture`: as Go names it; by default this machine's.
    """
    tars = [layer if isinstance(layer, bytes) else tar(layer) for layer in layers]
    found = [digest(data) for data in tars]
    packed = [compress(data) for data in tars]
    document = {
        "architecture": architecture or this_architecture(),
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": list(found if diff_ids is None else diff_ids)},
    }
    settings = json.dumps(document).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest(settings), "size": len(settings)},
        "layers": [
            {"mediaType": LAYER + _SUFFIX[compress], "digest": digest(data), "size": len(data)} for data in packed
        ],
    }
    blobs = {digest(data): data for data in (settings, *packed)}
    return Blobs(json.dumps(manifest).encode(), digest(settings), found, blobs)


def this_architecture() -> str:
    """This machine's, as Go names it."""
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def write_layout(folder: Path, made: Blobs, tag: str = "latest") -> None:
    """Write an image as an OCI layout."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for name, data in {**made.blobs, made.manifest_digest: made.manifest}.items():
        (blobs / name.removeprefix("sha256:")).write_bytes(data)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    reference = {
        "mediaType": MANIFEST,
        "digest": made.manifest_digest,
        "size": len(made.manifest),
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [reference]}))


def oci_layout(
    folder: Path, layers: Sequence[Layer], config: Mapping[str, Any] | None = None, tag: str = "latest", **how: Any
) -> Blobs:
    """Write an image as an OCI layout; `how` as for `image`."""
    made = image(layers, config, **how)
    write_layout(folder, made, tag)
    return made


def oci_archive(
    file: Path, layers: Sequence[Layer], config: Mapping[str, Any] | None = None, tag: str = "latest", **how: Any
) -> Blobs:
    """Write an image as a tar of an OCI layout; `how` as for `image`."""
    folder = file.with_name(f"{file.name}.layout")
    made = oci_layout(folder, layers, config, tag, **how)
    with tarfile.open(file, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    shutil.rmtree(folder)
    return made


def host_layer(programs: Sequence[str] = PROGRAMS) -> dict[str, Entry]:
    """A layer with programs of this host, the dynamic loader and their libraries: enough to run them, without a network.

    Programs lie in /usr/bin, and /bin is a link to it. `sh` is bash.
    """
    found = [Path(path) for name in programs if (path := shutil.which(name)) is not None]
    needed: set[str] = set()
    for program in found:
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        needed |= {word for word in listed.split() if word.startswith("/")}
    entries: dict[str, Entry] = {name: Folder() for name in ("dev", "etc", "proc", "root", "usr", "usr/bin")}
    entries |= {"tmp": Folder(0o1777), "bin": Link("usr/bin"), "usr/bin/sh": Link("bash")}
    entries["etc/passwd"] = b"root:x:0:0:root:/root:/bin/bash\n"
    entries["etc/group"] = b"root:x:0:\n"
    entries |= {f"usr/bin/{program.name}": File(program.read_bytes(), 0o755) for program in found}
    return entries | {path.lstrip("/"): File(Path(path).read_bytes(), 0o755) for path in sorted(needed)}
