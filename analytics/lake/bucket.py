"""A lake in an S3-compatible bucket: the objects `PREFIX/manifest/NUMBER.json` and `PREFIX/TABLE/FILE.parquet`.

Commits rely on conditional writes (`If-None-Match: *`), which a server must decide atomically; one without them is refused. Writers upload
files that they have written in a folder of this host. Readers copy what a query needs into that folder, since no file ever changes. Files
and copies appear whole.
"""

from __future__ import annotations

import io
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from analytics.lake.copies import Copies
from analytics.lake.schema import TABLES
from analytics.lake.store import MANIFESTS, Store, UnknownOutcomeError
from topics.environment import s3
from topics.environment.s3 import S3Address
from topics.types.errors import InputError

SETTING = "POLAR_LAKE"
PART = 8 * 1024 * 1024
"""Bytes of a part of a large upload: S3 takes 5 MiB at least, and 10,000 parts at most."""
PARTS_AT_ONCE = 4
BUFFER = 1024 * 1024
"""Bytes of a request that reads a part of a file. A smaller file takes one."""
AT_ONCE = 8
"""Uploads, downloads or deletions at the same time."""
SWEEP_S = 3600.0
"""Between two lists of all files of the bucket."""
UNCLAIMED = timedelta(hours=1)
"""A file is committed seconds after its upload. An older one in no manifest is likely a dead writer's; if not, it is written again."""
T = TypeVar("T")


class BucketError(OSError):
    """The server doesn't answer, or fails."""


class RefusedError(BucketError):
    """The server refuses: the bucket is missing, or the credentials are wrong or lack rights."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class BucketStore(Store):
    """Making it sends nothing, and raises NotReadyError as `s3.connect`."""

    def __init__(self, address: S3Address, folder: Path) -> None:
        super().__init__(folder)
        self._address = address
        self._bucket = s3.connect(address)
        self._copies = Copies(folder)
        self._newest: tuple[int, str | None] = (0, None)
        """Number and entity tag of the newest manifest when it was last looked for."""
        self._read: tuple[int, str | None, bytes] = (0, None, b"")
        """Number, entity tag and bytes of the manifest that was read last."""
        self._is_proven = False
        """Whether a conditional write was refused, as it must be."""
        self._listed_at: float | None = None

    @property
    def place(self) -> str:
        server = s3.endpoint()
        return f"{self._address} at {server}" if server else str(self._address)

    @property
    def database(self) -> None:
        return None

    def check(self) -> None:
        """Raises InputError also for a server without conditional writes."""
        if self._is_proven:
            return
        key = f"probe/{uuid.uuid4().hex}"
        with self._as_input():
            self._put_new(key, b"1")
            try:
                self._put_new(key, b"2")
            except FileExistsError:
                self._is_proven = True
            finally:
                self._delete(key)
        if not self._is_proven:
            raise InputError(
                SETTING,
                str(self._address),
                "the server ignores If-None-Match, which commits need: use a server with conditional writes, or a folder",
            )

    def exists(self) -> bool:
        with self._as_input():
            return self.newest_version() > 0

    def prepare(self) -> None:
        self.check()

    def versions(self) -> list[int]:
        return [version for version, _ in self._manifests()]

    def newest_version(self) -> int:
        # From the one known on: a list of all manifests has many pages.
        found = self._manifests(since=self._newest[0]) or self._manifests()
        self._newest = newest = found[-1] if found else (0, None)
        return newest[0]

    def has(self, version: int) -> bool:
        return any(found == version for found, _ in self._manifests(since=version))

    def read(self, version: int) -> bytes:
        newest, tag = self._newest
        if version != newest:
            tag = None
        if tag is not None and self._read[:2] == (version, tag):
            return self._read[2]
        data = self._get(_manifest(version))
        self._read = (version, tag, data)
        return data

    def create(self, version: int, manifest: bytes) -> None:
        try:
            self._put_new(_manifest(version), manifest)
        except FileExistsError:
            # The client repeats a request whose answer was lost, and then finds its own manifest.
            try:
                is_own = self._get(_manifest(version)) == manifest
            except BucketError as error:
                raise UnknownOutcomeError(str(error)) from error
            except FileNotFoundError:
                is_own = False
            if not is_own:
                raise
        except BucketError as error:
            raise UnknownOutcomeError(str(error)) from error

    def remove_version(self, version: int) -> None:
        self._delete(_manifest(version))

    def name_of(self, version: int) -> str:
        return f"{self._address}/{_manifest(version)}"

    def publish(self, written: Mapping[str, Iterable[str]]) -> None:
        _in_parallel(self._upload, [self.folder / table / name for table, names in written.items() for name in names])
        for table, names in written.items():
            self.drop_drafts(table, names)

    def fetch(self, table: str, sizes: Mapping[str, int]) -> None:
        missing = self._copies.missing(table, sizes)
        if not missing:
            return
        self._copies.make_room(sum(sizes[name] for name in missing))
        _in_parallel(lambda name: self._copy(table, name, sizes[name]), missing)

    def open(self, table: str, name: str, size: int) -> Any:
        key = f"{table}/{name}"
        if size <= BUFFER:
            return pa.BufferReader(self.part(key, 0, size))
        return pa.PythonFile(io.BufferedReader(_Object(self, key, size), BUFFER), "r")

    def remove(self, table: str, names: Iterable[str]) -> None:
        _in_parallel(lambda name: self._delete(f"{table}/{name}"), names)

    def drop_drafts(self, table: str, names: Iterable[str]) -> None:
        for name in names:
            (self.folder / table / name).unlink(missing_ok=True)

    def unclaimed(self) -> set[tuple[str, str]]:
        if self._listed_at is not None and time.monotonic() - self._listed_at < SWEEP_S:
            return set()
        before = datetime.now(UTC) - UNCLAIMED
        found = {
            (table, entry["path"].rpartition("/")[2])
            for table in TABLES
            for entry in self._list(table)
            if entry["last_modified"] < before
        }
        self._listed_at = time.monotonic()
        return found

    def clean(self) -> None:
        self._copies.evict()

    def part(self, key: str, start: int, end: int) -> bytes:
        """A part of an object. Raises FileNotFoundError, BucketError."""
        import obstore

        return bytes(self._send(lambda: obstore.get_range(self._bucket, key, start=start, end=end)))

    def _manifests(self, since: int = 0) -> list[tuple[int, str | None]]:
        """Numbers and entity tags of the manifests from a number on, ascending."""
        found = self._list(MANIFESTS, after=_manifest(since - 1) if since > 0 else None)
        names = [(Path(entry["path"]), entry["e_tag"]) for entry in found]
        return sorted((int(path.stem), tag) for path, tag in names if path.suffix == ".json" and path.stem.isdecimal())

    def _list(self, folder: str, after: str | None = None) -> list[Any]:
        import obstore

        return self._send(lambda: [one for page in obstore.list(self._bucket, folder, offset=after) for one in page])

    def _get(self, key: str) -> bytes:
        import obstore

        return self._send(lambda: bytes(obstore.get(self._bucket, key).bytes()))

    def _put_new(self, key: str, data: bytes) -> None:
        """Raises FileExistsError, BucketError."""
        import obstore

        self._send(lambda: obstore.put(self._bucket, key, data, mode="create", use_multipart=False))

    def _upload(self, path: Path) -> None:
        import obstore

        key = f"{path.parent.name}/{path.name}"
        if path.stat().st_size <= PART:
            data = path.read_bytes()
            self._send(lambda: obstore.put(self._bucket, key, data, use_multipart=False))
            return
        with path.open("rb") as file:
            self._send(lambda: obstore.put(self._bucket, key, file, chunk_size=PART, max_concurrency=PARTS_AT_ONCE))

    def _delete(self, key: str) -> None:
        import obstore

        with suppress(FileNotFoundError):
            self._send(lambda: obstore.delete(self._bucket, key))

    def _copy(self, table: str, name: str, size: int) -> None:
        import obstore

        draft = self.folder / table / f".{name}.{uuid.uuid4().hex}"

        def copy() -> int:
            with draft.open("xb") as file:
                for chunk in obstore.get(self._bucket, f"{table}/{name}").stream(min_chunk_size=BUFFER):
                    file.write(chunk)
                return file.tell()

        try:
            if (found := self._send(copy)) != size:
                raise BucketError(f"{self._address}/{table}/{name} has {found} bytes, its manifest says {size}")
            draft.replace(self.folder / table / name)
        except FileNotFoundError as error:
            raise BucketError(
                f"{table}/{name} was merged with others and removed before its copy was made: run the query again"
            ) from error
        finally:
            draft.unlink(missing_ok=True)

    @contextmanager
    def _as_input(self) -> Iterator[None]:
        """Raise InputError for a refusal."""
        try:
            yield
        except RefusedError as error:
            raise InputError(SETTING, str(self._address), error.reason) from None

    def _send(self, request: Callable[[], T]) -> T:
        """The answer to a request. Raises FileNotFoundError, FileExistsError, BucketError."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            return request()
        except AlreadyExistsError as error:
            raise FileExistsError(17, "exists", self.place) from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._refused(error) from error
            raise FileNotFoundError(2, "no such object", self.place) from error
        except BaseError as error:
            if s3.is_refusal(error):
                raise self._refused(error) from error
            raise BucketError(self._failed(error)) from error

    def _refused(self, error: Exception) -> RefusedError:
        return RefusedError(self._failed(error), s3.failure(error))

    def _failed(self, error: Exception) -> str:
        return f"{self.place} ({SETTING}): {s3.failure(error)}"


class _Object(io.RawIOBase):
    """An object of a bucket, read by ranges."""

    def __init__(self, store: BucketStore, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._store.part(self._key, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _manifest(version: int) -> str:
    return f"{MANIFESTS}/{version:020}.json"


def _in_parallel(work: Callable[[T], object], items: Iterable[T]) -> None:
    """Do the work for all items, a few at a time. Raises the first error, after which no more is begun.

    The threads are daemons, so that a person's Ctrl-C doesn't wait for downloads.
    """
    waiting = deque(items)
    errors: list[Exception] = []

    def run() -> None:
        while not errors:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                work(item)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=run, name="lake-bucket", daemon=True) for _ in range(min(AT_ONCE, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
