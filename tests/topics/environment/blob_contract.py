"""What every blob store guarantees. A store's test class inherits the suite and gives it a `place`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

from topics.environment.blobs import BlobRef, BlobStore, DamagedBlobError

LARGE = 20_000_000
"""Bytes of a blob that a bucket takes in three parts."""


class Place(Protocol):
    """A store, and what only a test does with it."""

    def store(self) -> BlobStore:
        """A store of its own, as another process would have it."""

    def objects(self) -> list[str]:
        """What readers could find there, by name."""

    def damage(self, ref: str, data: bytes) -> None:
        """Replace the bytes of a blob."""


class BlobContract:
    @pytest.fixture
    def store(self, place: Place) -> BlobStore:
        return place.store()

    @pytest.mark.parametrize("data", [b"", b"x", b"some bytes", bytes(range(256)) * 1000])
    def test_bytes_come_back_by_their_hash_elsewhere_too(self, place: Place, store: BlobStore, data: bytes) -> None:
        ref = store.put(data)
        assert ref == BlobRef(f"blob:sha256/{hashlib.sha256(data).hexdigest()}", len(data))
        assert place.store().get(ref.ref) == data

    def test_the_same_bytes_are_kept_once(self, place: Place, store: BlobStore) -> None:
        assert store.put(b"twice") == store.put(b"twice") == store.put_chunks(lambda: [b"tw", b"ice"])
        assert len(place.objects()) == 1

    def test_writers_of_the_same_bytes_at_once_leave_one_whole_blob(self, place: Place, store: BlobStore) -> None:
        data = b"x" * 1_000_000
        with ThreadPoolExecutor(8) as threads:
            refs = list(threads.map(store.put, [data] * 8))
        assert len(set(map(str, refs))) == 1
        assert len(place.objects()) == 1
        assert place.store().get(refs[0].ref) == data

    def test_a_large_blob_is_written_and_read_in_steps(self, place: Place, store: BlobStore) -> None:
        piece = hashlib.sha256(b"piece").digest() * 31_250

        def chunks() -> Iterator[bytes]:
            for _ in range(LARGE // len(piece)):
                yield piece

        ref = store.put_chunks(chunks)
        assert ref.size == LARGE
        hashed = hashlib.sha256()
        with place.store().open(ref.ref) as blob:
            while data := blob.read(300_000):
                assert len(data) <= 300_000
                hashed.update(data)
        assert ref.ref.endswith(hashed.hexdigest())
        assert len(place.store().get(ref.ref)) == LARGE

    @pytest.mark.parametrize("size", [10, LARGE])
    def test_chunks_that_change_are_not_stored(self, place: Place, store: BlobStore, size: int) -> None:
        answers = iter([[b"1" * size], [b"2" * size]])
        with pytest.raises(ValueError, match="changed while they were stored"):
            store.put_chunks(lambda: next(answers))
        assert place.objects() == []

    @pytest.mark.parametrize("size", [10, LARGE])
    def test_an_error_of_the_chunks_is_raised_and_leaves_nothing(
        self, place: Place, store: BlobStore, size: int
    ) -> None:
        def broken() -> Iterator[bytes]:
            yield b"1" * size
            raise RuntimeError("no such luck")

        answers = iter([[b"1" * size, b"2"], broken()])
        with pytest.raises(RuntimeError, match="no such luck"):
            store.put_chunks(lambda: next(answers))
        assert place.objects() == []

    def test_a_blob_of_now_is_refreshed_and_one_that_is_missing_is_not(self, store: BlobStore) -> None:
        assert store.refresh(store.put(b"new").ref)
        assert not store.refresh(f"blob:sha256/{'0' * 64}")

    def test_what_is_not_there_is_a_missing_file(self, store: BlobStore) -> None:
        with pytest.raises(FileNotFoundError):
            store.get(f"blob:sha256/{'0' * 64}")
        with pytest.raises(FileNotFoundError), store.open(f"blob:sha256/{'0' * 64}"):
            pass

    @pytest.mark.parametrize(
        "ref", ["", "blob:sha256/", "blob:sha256/../../etc/passwd", f"blob:sha256/{'A' * 64}", "s3://x"]
    )
    def test_what_is_no_reference_is_refused(self, store: BlobStore, ref: str) -> None:
        for use in (store.get, store.refresh, store.fetch):
            with pytest.raises(ValueError, match="not a blob reference"):
                use(ref)

    @pytest.mark.parametrize("data", [b"broken", b"who", b"whole and more", b""])
    def test_damage_ends_a_reading_whatever_else_it_caused(self, place: Place, store: BlobStore, data: bytes) -> None:
        ref = store.put(b"whole").ref
        place.damage(ref, data)
        with pytest.raises(DamagedBlobError, match=ref):
            store.get(ref)
        with pytest.raises(DamagedBlobError, match=ref), store.open(ref) as blob:
            blob.read(2)
        with pytest.raises(DamagedBlobError, match=ref), store.open(ref):
            raise ArithmeticError("from what was read")

    def test_an_error_of_the_reader_stays_where_the_bytes_are_whole(self, store: BlobStore) -> None:
        ref = store.put(b"whole").ref
        with pytest.raises(ArithmeticError), store.open(ref):
            raise ArithmeticError
