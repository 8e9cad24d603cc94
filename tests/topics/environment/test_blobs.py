"""The blob store as a folder: the guarantees of every store, and those of a folder alone."""

import contextlib
import errno
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small_disks import needs_root, small_disk
from tests.topics.environment.blob_contract import BlobContract
from topics.environment.blobs import BlobRef, BlobStore, FolderBlobs


@pytest.fixture
def store(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "blobs")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class FolderPlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self) -> BlobStore:
        return FolderBlobs(self._folder)

    def objects(self) -> list[str]:
        return [path.name for path in files(self._folder)]

    def damage(self, ref: str, data: bytes) -> None:
        FolderBlobs(self._folder).path(ref).write_bytes(data)


class TestFolder(BlobContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> FolderPlace:
        return FolderPlace(tmp_path / "blobs")


@given(data=st.binary(max_size=200))
def test_any_bytes_come_back_by_their_hash(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-blobs"
    ref = FolderBlobs(folder).put(data)
    assert ref == BlobRef(f"blob:sha256/{hashlib.sha256(data).hexdigest()}", len(data))
    assert FolderBlobs(folder).get(ref.ref) == data


def test_bytes_that_are_stored_again_are_as_new_as_if_they_were_new(store: FolderBlobs, tmp_path: Path) -> None:
    """So that old files may be removed by their time."""
    store.put(b"task")
    (path,) = files(tmp_path)
    os.utime(path, (0, 0))
    store.put(b"task")
    assert path.stat().st_mtime > 0


def test_a_write_that_fails_leaves_nothing(store: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        store, data = FolderBlobs(disk / "blobs"), b"x" * 600_000
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


@given(chunks=st.lists(st.binary(max_size=50), max_size=6), size=st.integers(1, 40))
def test_chunks_make_the_blob_of_their_bytes_and_are_read_in_any_steps(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], size: int
) -> None:
    store = FolderBlobs(tmp_path_factory.getbasetemp() / "chunks")
    whole = b"".join(chunks)
    ref = store.put_chunks(lambda: chunks)
    assert ref == store.put(whole)
    with store.open(ref.ref) as blob:
        assert b"".join(iter(lambda: blob.read(size), b"")) == whole
    with store.open(ref.ref) as blob:
        assert blob.read(size) == whole[:size], "the remaining bytes are verified all the same"


def test_chunks_that_are_there_are_not_written_again(store: FolderBlobs, tmp_path: Path) -> None:
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
