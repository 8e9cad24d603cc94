"""The blob store: content-addressed, whole or not at all."""

import contextlib
import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small_disks import needs_root, small_disk
from topics.environment.blobs import BlobRef, BlobStore, DamagedBlobError


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@given(data=st.binary(max_size=200))
def test_any_bytes_come_back_by_their_hash(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-blobs"
    ref = BlobStore(folder).put(data)
    assert ref == BlobRef(f"blob:sha256/{hashlib.sha256(data).hexdigest()}", len(data))
    assert BlobStore(folder).get(ref.ref) == data


def test_the_same_bytes_are_kept_once(store: BlobStore, tmp_path: Path) -> None:
    assert store.put(b"twice") == store.put(b"twice")
    assert len(files(tmp_path)) == 1


def test_bytes_that_are_stored_again_are_as_new_as_if_they_were_new(store: BlobStore, tmp_path: Path) -> None:
    """So that old files may be removed by their time."""
    store.put(b"task")
    (path,) = files(tmp_path)
    os.utime(path, (0, 0))
    store.put(b"task")
    assert path.stat().st_mtime > 0


def test_writers_of_the_same_bytes_at_once_leave_one_whole_file(store: BlobStore, tmp_path: Path) -> None:
    data = b"x" * 1_000_000
    with ThreadPoolExecutor(8) as threads:
        refs = list(threads.map(store.put, [data] * 8))
    assert len(set(map(str, refs))) == 1
    assert len(files(tmp_path)) == 1
    assert store.get(refs[0].ref) == data


def test_a_write_that_fails_leaves_nothing(store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="disk full"):
        store.put(b"lost")
    assert files(tmp_path) == []


@pytest.mark.contract
@needs_root
def test_a_full_disk_is_named_and_holds_nothing_half_written_and_with_room_the_bytes_are_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        store, data = BlobStore(disk / "blobs"), b"x" * 600_000
        store.put(b"folder")  # a write may fail at its first byte or at its folder, and later than that
        ballast = disk / "ballast"
        for size in (500_000, 1_000_000):
            with contextlib.suppress(OSError):
                ballast.write_bytes(bytes(size))
            with pytest.raises(OSError, match="No space left") as failed:
                store.put(data)
            assert str(disk / "blobs") in str(failed.value)
            assert len(files(disk / "blobs")) == 1
        ballast.unlink()
        assert store.get(store.put(data).ref) == data


def test_what_is_not_there_is_a_missing_file(store: BlobStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.get(f"blob:sha256/{'0' * 64}")


@pytest.mark.parametrize(
    "ref", ["", "blob:sha256/", "blob:sha256/../../etc/passwd", f"blob:sha256/{'A' * 64}", "s3://x"]
)
def test_what_is_no_reference_is_refused(store: BlobStore, ref: str) -> None:
    with pytest.raises(ValueError, match="not a blob reference"):
        store.get(ref)


def test_damaged_bytes_are_noticed(store: BlobStore, tmp_path: Path) -> None:
    ref = store.put(b"whole").ref
    files(tmp_path)[0].write_bytes(b"broken")
    with pytest.raises(ValueError, match="damaged"):
        store.get(ref)


# --- more than fits into memory


@given(chunks=st.lists(st.binary(max_size=50), max_size=6), size=st.integers(1, 40))
def test_chunks_make_the_blob_of_their_bytes_and_are_read_in_any_steps(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], size: int
) -> None:
    store = BlobStore(tmp_path_factory.getbasetemp() / "chunks")
    whole = b"".join(chunks)
    ref = store.put_chunks(lambda: chunks)
    assert ref == store.put(whole)
    with store.open(ref.ref) as blob:
        assert b"".join(iter(lambda: blob.read(size), b"")) == whole
    with store.open(ref.ref) as blob:
        assert blob.read(size) == whole[:size], "the remaining bytes are verified all the same"


def test_chunks_that_are_there_are_not_written_again(store: BlobStore, tmp_path: Path) -> None:
    calls: list[int] = []

    def chunks() -> list[bytes]:
        calls.append(1)
        return [b"on", b"ce"]

    ref = store.put_chunks(chunks)
    (path,) = files(tmp_path)
    os.utime(path, (0, 0))
    assert store.put_chunks(chunks) == ref
    assert len(calls) == 3, "twice for what was new, once for what was there"
    assert path.stat().st_mtime > 0


def test_chunks_that_change_are_not_stored(store: BlobStore, tmp_path: Path) -> None:
    answers = iter([[b"first"], [b"second"]])
    with pytest.raises(ValueError, match="changed while they were stored"):
        store.put_chunks(lambda: next(answers))
    assert files(tmp_path) == []


@pytest.mark.parametrize("data", [b"broken", b"who", b"whole and more"])
def test_damage_ends_a_reading_whatever_else_it_caused(store: BlobStore, tmp_path: Path, data: bytes) -> None:
    ref = store.put(b"whole").ref
    files(tmp_path)[0].write_bytes(data)
    with pytest.raises(DamagedBlobError, match=ref), store.open(ref) as blob:
        blob.read(2)
    with pytest.raises(DamagedBlobError, match=ref), store.open(ref):
        raise ArithmeticError("from what was read")


def test_an_error_of_the_reader_stays_where_the_bytes_are_whole(store: BlobStore) -> None:
    ref = store.put(b"whole").ref
    with pytest.raises(ArithmeticError), store.open(ref):
        raise ArithmeticError
