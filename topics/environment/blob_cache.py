"""Copies of blobs on a worker's own disk, so that a bucket sends each of them once for all sessions of a host.

Invariant: a copy is whole when it appears, and verified whenever it is read. A damaged copy is deleted, and the next reader fetches it
again. The oldest copies are deleted beyond CACHE_BYTES or CACHE_FILES. Several workers may share the folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from topics.environment.blobs import BlobReader, BlobRef, BlobStore, DamagedBlobError, FolderBlobs, Readable

CACHE_BYTES = 4 * 1024**3
"""Four uploads of the largest size."""
CACHE_FILES = 10_000
"""So that looking for the oldest takes 0.1 s at most."""
_CHUNK = 1024 * 1024


class CachedBlobs(BlobStore):
    """`far`, read through copies in `folder`."""

    def __init__(self, far: BlobStore, folder: Path, *, most_bytes: int = CACHE_BYTES) -> None:
        self._far = far
        self._near = FolderBlobs(folder)
        self._folder = folder
        self._most_bytes = most_bytes

    @property
    def place(self) -> str:
        return self._far.place

    def refresh(self, ref: str) -> bool:
        return self._far.refresh(ref)

    def fetch(self, ref: str) -> None:
        if self._near.refresh(ref):
            return
        with self._far.open(ref) as blob:
            self._near.write(BlobRef(ref, 0), _verified(blob, ref))
        self._evict(ref)

    @contextmanager
    def open(self, ref: str) -> Iterator[BlobReader]:
        self.fetch(ref)
        try:
            with self._near.open(ref) as blob:
                yield blob
        except DamagedBlobError:
            self._near.path(ref).unlink(missing_ok=True)
            raise

    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        self._far.write(blob, chunks)

    def source(self, ref: str) -> AbstractContextManager[Readable]:
        return self._near.source(ref)

    def _evict(self, kept: str) -> None:
        """Delete the oldest copies beyond the limits, but never `kept`."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("??/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime, status.st_size, path))
        found.sort()
        size, number = sum(one[1] for one in found), len(found)
        for _, bytes_, path in found:
            if size <= self._most_bytes and number <= CACHE_FILES:
                return
            if path != self._near.path(kept):
                path.unlink(missing_ok=True)
                size, number = size - bytes_, number - 1


def _verified(blob: BlobReader, ref: str) -> Iterator[bytes]:
    """The bytes. Raises DamagedBlobError at their end if they aren't those of `ref`."""
    yield from iter(lambda: blob.read(_CHUNK), b"")
    blob.check(ref)
