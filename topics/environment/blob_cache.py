"""Copies of blobs on a worker's own disk, so that a bucket sends each of them once for all sessions of a host.

Invariant: a copy is whole when it appears, and verified whenever it is read. A damaged copy is deleted, and the next reader fetches it
again. The oldest copies are deleted beyond CACHE_BYTES or CACHE_FILES. Several workers may share the folder: one of them fetches a blob,
and the others wait for its copy. Names that begin with a dot are copies under way, and locks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import filelock

from topics.environment import private_files
from topics.environment.blobs import (
    BlobReader,
    BlobRef,
    BlobStore,
    BlobStoreError,
    DamagedBlobError,
    FolderBlobs,
    Readable,
    digest_of,
)

CACHE_BYTES = 4 * 1024**3
"""Four uploads of the largest size."""
CACHE_FILES = 10_000
"""So that looking for the oldest takes 0.1 s at most."""
LOCK_S = 30.0
"""Limit for waiting on another fetch of the same blob: the time of one request to a bucket. A caller that has more time asks again."""
ABANDONED_S = 6 * 3600.0
"""A copy under way that wasn't written to for this long was left by a process that died."""
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
        with self._fetching(ref):
            if self._near.refresh(ref):  # fetched by another while this one waited
                return
            with self._far.open(ref) as blob:
                self._copy(blob, ref)
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

    @contextmanager
    def _fetching(self, ref: str) -> Iterator[None]:
        """Exclude other fetches of the blob, in any process of the host. Raises BlobStoreError after LOCK_S."""
        digest = digest_of(ref)
        file = self._folder / digest[:2] / f".{digest}.lock"
        private_files.make_folder(file.parent)
        lock = filelock.FileLock(file, mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=LOCK_S)
        except filelock.Timeout:
            raise BlobStoreError(
                f"{ref} is being fetched from {self.place} (POLAR_BLOBS) by another session and hasn't come within {LOCK_S:.0f} s"
            ) from None
        try:
            yield
        finally:
            # Whoever waits finds that its file is gone, and makes a new one. If two fetch for once, the later copy replaces the earlier.
            file.unlink(missing_ok=True)
            lock.release()

    def _copy(self, blob: BlobReader, ref: str) -> None:
        is_missing = False

        def chunks() -> Iterator[bytes]:
            nonlocal is_missing
            try:
                yield from iter(lambda: blob.read(_CHUNK), b"")
            except FileNotFoundError:
                is_missing = True
                raise
            blob.check()

        try:
            self._near.write(BlobRef(ref, 0), chunks())
        except FileNotFoundError as error:
            if is_missing:
                raise
            # Somebody has emptied the folder meanwhile, which says nothing about the blob.
            raise BlobStoreError(f"the copy of {ref} in {self._folder} was deleted while it was made") from error

    def _evict(self, kept: str) -> None:
        """Delete the oldest copies beyond the limits, but never `kept`, and what dead processes have left."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("??/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.name.startswith("."):
                if time.time() - status.st_mtime > ABANDONED_S:
                    path.unlink(missing_ok=True)
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
