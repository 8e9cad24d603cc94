"""The blob store, content-addressed, for values that are too big for an event, which then carries `{ref, size}`.

A reference is `blob:sha256/<hex>`; every reader resolves it in the store that its own `POLAR_BLOBS` names: a folder, or a bucket
(`s3_blobs.py`). Invariant, whatever the store: a blob is there whole or not at all, and its bytes are verified whenever they are read.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

import msgspec

from topics.environment import private_files
from topics.environment.archive import BYTES_LIMIT

REF = re.compile(r"^blob:sha256/([0-9a-f]{64})$")
GET_LIMIT = 256 * 1024 * 1024
"""Most bytes that `get` brings into memory. Tasks, logs and patches have 16 MiB at most; artifacts of one's own evaluators may have more.
What is larger, up to the largest upload, is read by `open`."""
_CHUNK = 1024 * 1024


class BlobRef(msgspec.Struct, frozen=True):
    """Reference to a value, and its size in bytes."""

    ref: str
    size: int


class DamagedBlobError(ValueError):
    """The stored bytes aren't those of their reference."""


class BlobStoreError(OSError):
    """The store doesn't answer, or refuses; it may answer later. The message names POLAR_BLOBS, the store and the reason."""


class Readable(Protocol):
    """Bytes that are read once and in order."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, or all if it is -1; empty at the end."""


class BlobStore(ABC):
    """Where blobs are. Its methods block, and any thread may call them."""

    @property
    @abstractmethod
    def place(self) -> str:
        """The store's address, for people."""

    def put(self, data: bytes) -> BlobRef:
        """Store bytes durably; the blob appears whole or not at all. One that is there already is as new as if it were stored now, to a
        day. Raises OSError if it can't be written."""
        found = BlobRef(named(hashlib.sha256(data).hexdigest()), len(data))
        if not self.refresh(found.ref):
            self.write(found, [data])
        return found

    def put_chunks(self, chunks: Callable[[], Iterable[bytes]]) -> BlobRef:
        """Store bytes that don't fit into memory, as `put` does.

        `chunks` is called for the reference, and if the store lacks those bytes a second time to write them. Raises ValueError if the
        second time gives other bytes.
        """
        found = _reference(chunks())
        if not self.refresh(found.ref):
            self.write(found, _unchanged(chunks(), found.ref))
        return found

    @abstractmethod
    def refresh(self, ref: str) -> bool:
        """Keep a blob from being deleted as an old one. False if the store lacks it, or can only do that by storing it again. Raises
        ValueError as `get`, and OSError if the store can't be asked."""

    def get(self, ref: str) -> bytes:
        """The bytes behind a reference. Raises FileNotFoundError, DamagedBlobError, also for more than GET_LIMIT bytes, ValueError for an
        invalid reference, and another OSError if the store can't be read."""
        found = bytearray()
        with self.open(ref) as blob:
            blob.limit = min(GET_LIMIT, blob.limit)
            while data := blob.read(_CHUNK):
                found += data
        return bytes(found)

    @contextmanager
    def open(self, ref: str) -> Iterator[BlobReader]:
        """Read bytes that don't fit into memory. Raises as `get`, but DamagedBlobError at the end of the block, also in place of an error
        there, which the damage may have caused. Reading stops with DamagedBlobError beyond the size of the largest upload."""
        with self.source(ref) as source:
            blob = BlobReader(source, ref)
            try:
                yield blob
            except BlobStoreError:
                raise
            except Exception as error:
                blob.check(error)
                raise
            blob.check()

    def fetch(self, ref: str) -> None:
        """Bring a blob to this host, so that reading it there needs no other. Raises as `get`. Only stores far away have anything to do."""
        digest_of(ref)

    def check(self) -> None:
        """Ask the store for a blob that isn't there. Raises OSError if the store can't be used."""
        self.refresh(named("0" * 64))

    @abstractmethod
    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        """Make the blob appear once `chunks`, its bytes, has ended. An error of `chunks` leaves nothing, and is raised."""

    @abstractmethod
    def source(self, ref: str) -> AbstractContextManager[Readable]:
        """The bytes, which nobody has verified. Raises FileNotFoundError, ValueError for an invalid reference, and another OSError."""


class FolderBlobs(BlobStore):
    """A folder of blobs, in subfolders named by the first two hex digits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def place(self) -> str:
        return str(self._folder)

    def refresh(self, ref: str) -> bool:
        try:
            os.utime(self.path(ref))
        except FileNotFoundError:
            return False
        return True

    def path(self, ref: str) -> Path:
        """A blob's file. Raises ValueError for an invalid reference."""
        digest = digest_of(ref)
        return self._folder / digest[:2] / digest

    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        path = self.path(blob.ref)
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_files.replacing(path, is_durable=True) as file:
            for chunk in chunks:
                file.write(chunk)

    def source(self, ref: str) -> AbstractContextManager[IO[bytes]]:
        return self.path(ref).open("rb")


class BlobReader:
    """A blob that is being read, once and in order."""

    def __init__(self, source: Readable, ref: str) -> None:
        self._source = source
        self._ref = ref
        self._hashed = hashlib.sha256()
        self._size = 0
        self.limit = BYTES_LIMIT
        """Most bytes that are read, whatever the store sends."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, or all if it is -1. Raises DamagedBlobError for more bytes than `limit`."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_CHUNK), b""))
        if self._size <= self.limit:
            data = self._source.read(size)
            self._size += len(data)
            self._hashed.update(data)
        if self._size > self.limit:
            raise DamagedBlobError(f"{self._ref}: the store sends more than {self.limit} bytes")
        return data

    def check(self, cause: Exception | None = None) -> None:
        """Read to the end. Raises DamagedBlobError, because of `cause`, if the bytes aren't those of the reference, or too many."""
        while self.read(_CHUNK):
            pass
        if named(self._hashed.hexdigest()) != self._ref:
            raise DamagedBlobError(f"{self._ref}: the stored bytes are damaged") from cause


def named(digest: str) -> str:
    """The reference of a SHA-256 in hex."""
    return f"blob:sha256/{digest}"


def digest_of(ref: str) -> str:
    """The SHA-256 in a reference, in hex. Raises ValueError for an invalid one."""
    found = REF.match(ref)
    if found is None:
        raise ValueError(f"not a blob reference: {ref!r} (expected blob:sha256/<64 hex digits>)")
    return found[1]


def _unchanged(chunks: Iterable[bytes], ref: str) -> Iterator[bytes]:
    """The chunks. Raises ValueError at their end if they aren't the bytes of `ref`."""
    hashed = hashlib.sha256()
    for chunk in chunks:
        hashed.update(chunk)
        yield chunk
    if named(hashed.hexdigest()) != ref:
        raise ValueError("the bytes have changed while they were stored")


def _reference(chunks: Iterable[bytes]) -> BlobRef:
    hashed, size = hashlib.sha256(), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
    return BlobRef(named(hashed.hexdigest()), size)
