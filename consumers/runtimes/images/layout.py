"""Reads the OCI layout of one image (image-spec: image-layout.md, manifest.md, config.md). Nothing in it is trusted."""

from __future__ import annotations

import hashlib
import os
import platform
import posixpath
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from consumers.runtimes.images.source import FIELD
from topics.types.errors import InputError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DOCUMENT_BYTES = 4 << 20
"""Of a manifest or a configuration; registries allow no more."""
LAYERS = 128
"""Docker's own limit is 127."""
ENVIRONMENT_BYTES = 128 * 1024
USER_CHARACTERS = 255
_VARIABLE = re.compile(r"[^=\0]{1,255}")
_LAYER_TYPES = re.compile(
    r"application/vnd\.oci\.image\.layer\.v1\.tar(?:\+(?:gzip|zstd))?"
    r"|application/vnd\.docker\.image\.rootfs\.diff\.tar(?:\.(?:gzip|zstd))?"
)
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("amd64", "386"),
    "aarch64": ("arm64", "arm"),
    "ppc64le": ("ppc64le",),
    "s390x": ("s390x",),
    "riscv64": ("riscv64",),
}
"""What a machine runs, in Go's words."""
Document = TypeVar("Document")


class _Descriptor(msgspec.Struct):
    digest: str
    mediaType: str = ""  # noqa: N815 - the specification's name


class _Index(msgspec.Struct):
    manifests: list[_Descriptor]


class _Manifest(msgspec.Struct):
    config: _Descriptor
    layers: list[_Descriptor]


class _RootFilesystem(msgspec.Struct):
    diff_ids: list[str]


class _Execution(msgspec.Struct):
    Env: list[str] | None = None
    WorkingDir: str | None = None
    User: str | None = None


class _Configuration(msgspec.Struct):
    rootfs: _RootFilesystem
    os: str = ""
    architecture: str = ""
    config: _Execution | None = None


@dataclass(frozen=True)
class LayerBlob:
    """A layer as it was fetched."""

    diff_id: str
    """Digest of its uncompressed tar."""
    file: Path


@dataclass(frozen=True)
class Layout:
    """An image as it was fetched. Its layers are in order, the lowest first."""

    digest: str
    layers: tuple[LayerBlob, ...]
    environment: Mapping[str, str]
    workdir: PurePosixPath
    user: str


def read(name: str, folder: Path) -> Layout:
    """The only image of the layout in `folder`. Raises InputError for the image `name` that it can't be used, and OSError."""
    index = _document(name, folder / "index.json", _Index)
    if len(index.manifests) != 1:
        raise InputError(FIELD, name, f"has {len(index.manifests)} manifests instead of one")
    manifest = _document(name, _blob(name, folder, index.manifests[0].digest), _Manifest, index.manifests[0].digest)
    digest = manifest.config.digest
    configuration = _document(name, _blob(name, folder, digest), _Configuration, digest)
    _check_platform(name, configuration)
    diff_ids = configuration.rootfs.diff_ids
    if len(manifest.layers) > LAYERS:
        raise InputError(FIELD, name, f"has {len(manifest.layers)} layers; at most {LAYERS} can be mounted")
    if len(diff_ids) != len(manifest.layers) or not all(DIGEST.fullmatch(diff_id) for diff_id in diff_ids):
        raise InputError(FIELD, name, "has other layers in its configuration than in its manifest")
    layers = []
    for diff_id, layer in zip(diff_ids, manifest.layers, strict=True):
        if not _LAYER_TYPES.fullmatch(layer.mediaType):
            raise InputError(FIELD, name, f"has a layer of the type {layer.mediaType!r:.200}, which can't be unpacked")
        file = _blob(name, folder, layer.digest)
        if not file.is_file():
            raise InputError(FIELD, name, f"has the layer {layer.digest}, which isn't part of what was fetched")
        layers.append(LayerBlob(diff_id, file))
    execution = configuration.config or _Execution()
    user, workdir = execution.User or "", execution.WorkingDir or ""
    if len(user) > USER_CHARACTERS or "\0" in user + workdir:
        raise InputError(FIELD, name, "has a user or a working folder that no system has")
    return Layout(
        digest,
        tuple(layers),
        _environment(name, execution.Env or []),
        PurePosixPath(posixpath.normpath(f"/{workdir.lstrip('/')}")),
        user,
    )


def _environment(name: str, lines: list[str]) -> dict[str, str]:
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    if sum(map(len, lines)) > ENVIRONMENT_BYTES:
        raise InputError(FIELD, name, f"has more than {ENVIRONMENT_BYTES} bytes of environment")
    if not all(_VARIABLE.fullmatch(key) and "\0" not in value for key, value in environment.items()):
        raise InputError(FIELD, name, "has a variable in its environment that no program can get")
    return environment


def _check_platform(name: str, configuration: _Configuration) -> None:
    machine = platform.machine()
    architectures = ("", *_ARCHITECTURES.get(machine, (machine,)))
    if configuration.os not in ("", "linux") or configuration.architecture not in architectures:
        raise InputError(
            FIELD,
            name,
            f"is for {configuration.os!r:.50} on {configuration.architecture!r:.50}, and this worker is Linux on {machine}",
        )


def _blob(name: str, folder: Path, digest: str) -> Path:
    """Where a blob lies. Its digest becomes a path, so it must be one."""
    if not DIGEST.fullmatch(digest):
        raise InputError(FIELD, name, f"has the digest {digest!r:.200}; it must be sha256: and 64 hexadecimal digits")
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _document(name: str, file: Path, kind: type[Document], digest: str | None = None) -> Document:
    try:
        descriptor = open_blob(file)
    except FileNotFoundError:
        raise InputError(FIELD, name, f"lacks its document {file.name}") from None
    with os.fdopen(descriptor, "rb") as opened:
        data = opened.read(DOCUMENT_BYTES + 1)
    if len(data) > DOCUMENT_BYTES:
        raise InputError(FIELD, name, f"has a document of more than {DOCUMENT_BYTES} bytes, {file.name}")
    if digest is not None and f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise InputError(FIELD, name, f"has a document whose digest isn't {digest}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(FIELD, name, f"has a document that is none of an image: {error}") from None


def open_blob(file: Path) -> int:
    """A descriptor of a blob. Raises OSError if it is anything but a regular file."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is no regular file")
    return descriptor
