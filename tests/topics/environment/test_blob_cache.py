"""Copies of a store far away, which several sessions and workers of a host make and delete at once; a folder stands in for a bucket."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from topics.environment import blob_cache, blobs
from topics.environment.blob_cache import CachedBlobs
from topics.environment.blobs import BlobRef, BlobStore, BlobStoreError, DamagedBlobError, FolderBlobs, Readable
from topics.environment.s3 import S3Address
from topics.environment.s3_blobs import S3Blobs

DEADLINE_S = 10.0


class Bucket(BlobStore):
    """A folder whose blobs arrive in two steps, the second of them once `gate` is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = FolderBlobs(folder)
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        """Released for each blob whose first byte was sent."""
        self.fetches: list[str] = []

    @property
    def place(self) -> str:
        return "s3://bucket"

    def refresh(self, ref: str) -> bool:
        return self._folder.refresh(ref)

    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        self._folder.write(blob, chunks)

    @contextmanager
    def source(self, ref: str) -> Iterator[Readable]:
        with self._folder.source(ref) as file:
            self.fetches.append(ref)
            yield _Slow(file, self)


class _Slow:
    def __init__(self, file: Readable, bucket: Bucket) -> None:
        self._file = file
        self._bucket = bucket
        self._has_begun = False

    def read(self, size: int, /) -> bytes:
        if not self._has_begun:
            self._has_begun = True
            return self._file.read(1)
        self._bucket.begun.release()
        assert self._bucket.gate.wait(DEADLINE_S)
        return self._file.read(size)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    bucket = Bucket(tmp_path / "far")
    yield bucket
    bucket.gate.set()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def begun(bucket: Bucket) -> None:
    assert bucket.begun.acquire(timeout=DEADLINE_S)


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_sessions_that_need_the_same_blob_at_once_fetch_it_once(
    bucket: Bucket, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Each has a store of its own, as workers have that share the folder."""
    blob = bucket.put(b"for all of them")
    fetches: list[Future[bytes]] = [
        threads.submit(CachedBlobs(bucket, tmp_path / "near").get, blob.ref) for _ in range(6)
    ]
    begun(bucket)
    bucket.gate.set()
    assert {each.result(DEADLINE_S) for each in fetches} == {b"for all of them"}
    assert bucket.fetches == [blob.ref]
    assert left(tmp_path / "near") == [blob.ref.rpartition("/")[2]], "no lock stays"


def test_a_fetch_that_waits_too_long_for_another_says_so_and_may_ask_again(
    bucket: Bucket, threads: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_cache, "LOCK_S", 0.1)
    near, blob = CachedBlobs(bucket, tmp_path / "near"), bucket.put(b"slow")
    first = threads.submit(near.fetch, blob.ref)
    begun(bucket)
    with pytest.raises(BlobStoreError, match=r"being fetched from s3://bucket \(POLAR_BLOBS\)"):
        near.fetch(blob.ref)
    bucket.gate.set()
    first.result(DEADLINE_S)
    near.fetch(blob.ref)
    assert bucket.fetches == [blob.ref]


def test_copies_under_way_are_no_copies_that_may_be_deleted(
    bucket: Bucket, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    folder = tmp_path / "near"
    near = CachedBlobs(bucket, folder, most_bytes=1)
    needed = [bucket.put(bytes([number]) * 100) for number in range(2)]
    fetches = [threads.submit(near.fetch, blob.ref) for blob in needed]
    for _ in fetches:
        begun(bucket)
    for path in folder.rglob(".*"):
        os.utime(path, (minutes_ago := time.time() - 600, minutes_ago))
    FolderBlobs(folder).put(b"another")
    near._evict("blob:sha256/" + "0" * 64)
    bucket.gate.set()
    for each in fetches:
        each.result(DEADLINE_S)


def test_what_a_dead_process_left_is_deleted_after_hours(bucket: Bucket, tmp_path: Path) -> None:
    bucket.gate.set()
    blob = bucket.put(b"new")
    abandoned = tmp_path / "near" / "ab" / ".ab12.x1y2"
    abandoned.parent.mkdir(parents=True)
    abandoned.write_bytes(b"half")
    old = time.time() - blob_cache.ABANDONED_S - 60
    os.utime(abandoned, (old, old))
    CachedBlobs(bucket, tmp_path / "near").fetch(blob.ref)
    assert not abandoned.exists()


def test_a_copy_that_somebody_deletes_under_way_is_no_missing_blob(
    bucket: Bucket, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    near, blob = CachedBlobs(bucket, tmp_path / "near"), bucket.put(b"there")
    fetching = threads.submit(near.fetch, blob.ref)
    begun(bucket)
    for path in (tmp_path / "near").rglob(".*"):
        path.unlink()
    bucket.gate.set()
    with pytest.raises(BlobStoreError, match="was deleted while it was made"):
        fetching.result(DEADLINE_S)
    assert near.get(blob.ref) == b"there"


class Endless(Bucket):
    """A store that sends zeros as long as somebody reads."""

    sent = 0

    @contextmanager
    def source(self, ref: str) -> Iterator[Readable]:
        yield self

    def read(self, size: int, /) -> bytes:
        assert 0 < size <= 1024 * 1024, "the reader decides how much it keeps"
        self.sent += size
        assert self.sent < 100 * 1024 * 1024
        return bytes(size)


def test_reading_stops_where_a_store_sends_more_than_any_blob_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "BYTES_LIMIT", 5_000_000, raising=False)
    endless, ref = Endless(tmp_path / "far"), f"blob:sha256/{'0' * 64}"
    near = CachedBlobs(endless, tmp_path / "near")
    for use in (near.fetch, near.get, endless.get):
        endless.sent = 0
        with pytest.raises(DamagedBlobError, match="sends more than 5000000 bytes"):
            use(ref)
        assert endless.sent < 7_000_000
    assert left(tmp_path / "near") == []


def test_a_blob_that_is_too_large_for_memory_is_read_in_steps_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "GET_LIMIT", 5, raising=False)
    store = FolderBlobs(tmp_path)
    ref = store.put(b"12345678").ref
    with pytest.raises(DamagedBlobError, match="more than 5 bytes"):
        store.get(ref)
    with store.open(ref) as blob:
        assert blob.read(-1) == b"12345678"


class _Liar(BaseHTTPRequestHandler):
    """Answers a request for a part of 5 bytes with 64 MiB."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(206)
        for name, value in {
            "Content-Range": "bytes 0-4/5",
            "Content-Length": str(64 * 1024 * 1024),
            "ETag": '"1"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):
            for _ in range(64):
                self.wfile.write(bytes(1024 * 1024))

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_sends_more_than_the_part_asked_for_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        try:
            with pytest.raises(DamagedBlobError, match="more of key than the 5 bytes asked for"):
                S3Blobs(S3Address("bucket", "")).part("key", 0, 5)
        finally:
            server.shutdown()
