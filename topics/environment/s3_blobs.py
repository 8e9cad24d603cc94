"""The blob store in an S3-compatible bucket: the object `PREFIX/<first two hex digits>/<hex>` for each blob.

S3 shows an object once its upload is complete, so a writer that dies leaves nothing that a reader takes. An upload of several parts that
was never completed stays invisible in the bucket; a lifecycle rule removes it (docs/operations.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from topics.environment import s3
from topics.environment.blobs import BlobRef, BlobStore, BlobStoreError, DamagedBlobError, Readable, digest_of, named
from topics.environment.s3 import S3Address

PART = 8 * 1024 * 1024
"""Bytes of a part: S3 takes 5 MiB at least, and 10,000 parts at most."""
PARTS_AT_ONCE = 4
"""Parts in memory while a large blob is written."""
_CHUNK = 1024 * 1024
NEW = timedelta(days=1)
"""A blob that is older is stored again when it is used again: an object's time can't be changed otherwise."""


class S3Blobs(BlobStore):
    """Blobs in a bucket; making it sends nothing, and raises NotReadyError as `s3.connect`. Its methods raise BlobStoreError if the server
    doesn't answer or refuses."""

    def __init__(self, address: S3Address) -> None:
        self._address = address
        self._store = s3.connect(address)

    @property
    def place(self) -> str:
        server = s3.endpoint()
        return f"{self._address} at {server}" if server else str(self._address)

    def refresh(self, ref: str) -> bool:
        key = _key(ref)
        try:
            return datetime.now(UTC) - self._head(key)[1] < NEW
        except FileNotFoundError:
            return False

    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        import obstore

        source = _Source(chunks)
        with self._reporting():
            try:
                if blob.size <= PART:
                    obstore.put(self._store, _key(blob.ref), b"".join(source), use_multipart=False)
                else:
                    obstore.put(self._store, _key(blob.ref), source, chunk_size=PART, max_concurrency=PARTS_AT_ONCE)
            except Exception:
                if source.error is not None:
                    raise source.error from None
                raise

    @contextmanager
    def source(self, ref: str) -> Iterator[Readable]:
        key = _key(ref)
        yield _Ranges(self, key, self._head(key)[0])

    def check(self) -> None:
        # Not HEAD, whose answer has no body: a missing bucket would look like a missing blob.
        with suppress(FileNotFoundError):
            self.part(_key(named("0" * 64)), 0, 1)

    def part(self, key: str, start: int, length: int) -> bytes:
        """Bytes of an object, at most PART. Raises FileNotFoundError, BlobStoreError, DamagedBlobError for more than `length`."""
        import obstore

        found = bytearray()
        with self._reporting():
            # A stream, not get_range: that keeps all that a server sends, however much was asked for.
            answer = obstore.get(self._store, key, options={"range": (start, start + length)})
            for chunk in answer.stream(min_chunk_size=_CHUNK):
                found += chunk
                if len(found) > length:
                    raise DamagedBlobError(f"{self.place} sends more of {key} than the {length} bytes asked for")
        return bytes(found)

    def _head(self, key: str) -> tuple[int, datetime]:
        """Size and time of an object. Raises FileNotFoundError, BlobStoreError."""
        import obstore

        with self._reporting():
            found = obstore.head(self._store, key)
        return found["size"], found["last_modified"]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raise BlobStoreError for the library's errors. A missing object is FileNotFoundError, unless its bucket is missing."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" not in str(error):
                raise FileNotFoundError(2, "no such blob", self.place) from None
            raise self._failed(error) from error
        except BaseError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> BlobStoreError:
        return BlobStoreError(f"the blob store {self.place} (POLAR_BLOBS) can't be used: {s3.failure(error)}")


class _Source:
    """Chunks for the library, which reports an error of theirs as its own."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self.error: Exception | None = None
        """What the chunks raised."""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


class _Ranges:
    """An object, read in parts: each request has its own deadline, and memory holds one part."""

    def __init__(self, blobs: S3Blobs, key: str, size: int) -> None:
        self._blobs = blobs
        self._key = key
        self._size = size
        self._position = 0
        """Bytes requested so far."""
        self._part = memoryview(b"")
        """What is left of the last part."""

    def read(self, size: int, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(PART), b""))
        if not self._part and size and self._position < self._size:
            length = min(PART, self._size - self._position)
            self._part = memoryview(self._blobs.part(self._key, self._position, length))
            self._position += length
        found, self._part = self._part[:size], self._part[size:]
        return bytes(found)


def _key(ref: str) -> str:
    digest = digest_of(ref)
    return f"{digest[:2]}/{digest}"
