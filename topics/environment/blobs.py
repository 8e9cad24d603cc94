"""The blob store, a content-addressed folder for values that are too big for an event, which then carries `{ref, size}`.

A reference is `blob:sha256/<hex>`; every reader resolves it against its own `POLAR_BLOBS`. Writing the same bytes twice writes once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from topics.environment import private_files

REF = re.compile(r"^blob:sha256/([0-9a-f]{64})$")
_CHUNK = 1024 * 1024


class BlobRef(msgspec.Struct, frozen=True):
    """Reference to a value, and its size in bytes."""

    ref: str
    size: int


class DamagedBlobError(ValueError):
    """The stored bytes aren't those of their reference."""


class BlobStore:
    """A folder of blobs, in subfolders named by the first two hex digits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> BlobRef:
        """Store bytes durably; the file appears whole or not at all. The time of a file that is there already becomes now."""
        found = BlobRef(_named(hashlib.sha256(data).hexdigest()), len(data))
        if not self.refresh(found.ref):
            with self._appearing(found.ref) as file:
                file.write(data)
        return found

    def put_chunks(self, chunks: Callable[[], Iterable[bytes]]) -> BlobRef:
        """Store bytes that don't fit into memory, as `put` does.

        `chunks` is called for the reference, and if the store lacks those bytes a second time to write them. Raises ValueError if the
        second time gives other bytes.
        """
        found = _reference(chunks())
        if not self.refresh(found.ref):
            hashed = hashlib.sha256()
            with self._appearing(found.ref) as file:
                for chunk in chunks():
                    hashed.update(chunk)
                    file.write(chunk)
                if _named(hashed.hexdigest()) != found.ref:
                    raise ValueError("the bytes have changed while they were stored")
        return found

    def refresh(self, ref: str) -> bool:
        """Make the time of a blob now, so that it isn't deleted as an old one; False if the store lacks it. Raises ValueError as `get`."""
        try:
            os.utime(self._path(ref))
        except FileNotFoundError:
            return False
        return True

    def get(self, ref: str) -> bytes:
        """The bytes behind a reference. Raises FileNotFoundError, DamagedBlobError, and ValueError for an invalid reference."""
        with self.open(ref) as blob:
            return blob.read(-1)

    @contextmanager
    def open(self, ref: str) -> Iterator[BlobReader]:
        """Read bytes that don't fit into memory. Raises as `get`, but DamagedBlobError at the end of the block, also in place of an error
        there, which the damage may have caused."""
        with self._path(ref).open("rb") as file:
            blob = BlobReader(file)
            try:
                yield blob
            except Exception as error:
                blob.check(ref, error)
                raise
            blob.check(ref)

    @contextmanager
    def _appearing(self, ref: str) -> Iterator[IO[bytes]]:
        path = self._path(ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_files.replacing(path, is_durable=True) as file:
            yield file

    def _path(self, ref: str) -> Path:
        found = REF.match(ref)
        if found is None:
            raise ValueError(f"not a blob reference: {ref!r} (expected blob:sha256/<64 hex digits>)")
        return self._folder / found[1][:2] / found[1]


class BlobReader:
    """A blob that is being read, once and in order."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hashed = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, or all if it is -1."""
        data = self._file.read(size)
        self._hashed.update(data)
        return data

    def check(self, ref: str, cause: Exception | None = None) -> None:
        """Read to the end. Raises DamagedBlobError, because of `cause`, if the bytes aren't those of `ref`."""
        while self.read(_CHUNK):
            pass
        if _named(self._hashed.hexdigest()) != ref:
            raise DamagedBlobError(f"{ref}: the stored bytes are damaged") from cause


def _named(digest: str) -> str:
    return f"blob:sha256/{digest}"


def _reference(chunks: Iterable[bytes]) -> BlobRef:
    hashed, size = hashlib.sha256(), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
    return BlobRef(_named(hashed.hexdigest()), size)
