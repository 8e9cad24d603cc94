"""The blob store in a bucket of a real S3 server: the guarantees of every store, and what befalls a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import obstore
import pytest

from tests.s3_server import BUCKET, KEY_ID, SECRET, S3Server, s3_server
from tests.serving import free_port
from tests.topics.environment.blob_contract import BlobContract
from topics.environment import blob_store, s3, s3_blobs
from topics.environment.blob_cache import CachedBlobs
from topics.environment.blobs import BlobStore, BlobStoreError, DamagedBlobError, FolderBlobs, digest_of
from topics.environment.s3 import S3Address
from topics.environment.s3_blobs import S3Blobs
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError

BLOB = f"blob:sha256/{'0' * 64}"


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS_ variables and no ~/.aws of the person who runs the tests."""
    for name in (
        "AWS_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CA_BUNDLE",
        "AWS_ENDPOINT_URL_S3",
        "AWS_SESSION_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def server(shared_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, named by this process's variables."""
    for name, value in shared_server.variables.items():
        monkeypatch.setenv(name, value)
    return shared_server


@pytest.fixture
def address(server: S3Server, tmp_path: Path) -> S3Address:
    """A place of this test alone."""
    return S3Address(BUCKET, f"tests/{tmp_path.name}")


class BucketPlace:
    def __init__(self, address: S3Address) -> None:
        self._address = address

    def store(self) -> BlobStore:
        return S3Blobs(self._address)

    def objects(self) -> list[str]:
        return [found["path"] for page in obstore.list(s3.connect(self._address)) for found in page]

    def damage(self, ref: str, data: bytes) -> None:
        digest = digest_of(ref)
        obstore.put(s3.connect(self._address), f"{digest[:2]}/{digest}", data)


class CachedPlace(BucketPlace):
    """A bucket that each process reads through copies of its own."""

    def __init__(self, address: S3Address, folder: Path) -> None:
        super().__init__(address)
        self._folder = folder
        self._stores = 0

    def store(self) -> BlobStore:
        self._stores += 1
        return CachedBlobs(super().store(), self._folder / str(self._stores))


@pytest.mark.contract
class TestBucket(BlobContract):
    @pytest.fixture
    def place(self, address: S3Address) -> BucketPlace:
        return BucketPlace(address)


@pytest.mark.contract
class TestCachedBucket(BlobContract):
    @pytest.fixture
    def place(self, address: S3Address, tmp_path: Path) -> CachedPlace:
        return CachedPlace(address, tmp_path)


@pytest.mark.contract
def test_an_old_blob_is_stored_again_when_it_is_used_again(address: S3Address, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Blobs(address)
    ref = store.put(b"task")
    (before,) = (found for page in obstore.list(s3.connect(address)) for found in page)
    monkeypatch.setattr(s3_blobs, "NEW", timedelta(0))
    assert not store.refresh(ref.ref)
    assert store.put(b"task") == ref
    (after,) = (found for page in obstore.list(s3.connect(address)) for found in page)
    assert after["last_modified"] >= before["last_modified"]
    assert store.get(ref.ref) == b"task"


WRITER = """
import sys
from topics.environment.s3 import S3Address
from topics.environment.s3_blobs import PART, S3Blobs

def chunks():
    yield bytes(4 * PART)
    if again:
        print("half", flush=True)
        sys.stdin.read()
    again.append(True)

again = []
S3Blobs(S3Address(*sys.argv[1:])).put_chunks(chunks)
"""


@pytest.mark.contract
def test_a_writer_that_is_killed_leaves_nothing_that_a_reader_takes(address: S3Address) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, address.bucket, address.prefix], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    assert BucketPlace(address).objects() == []


@pytest.mark.contract
def test_a_server_that_is_killed_is_named_and_has_everything_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RETRIES", 1)
    with s3_server(tmp_path / "server") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        store = S3Blobs(S3Address(BUCKET, ""))
        ref = store.put(b"kept").ref
        server.kill()
        for use in (lambda: store.put(b"new"), lambda: store.get(ref), lambda: store.refresh(ref)):
            with pytest.raises(BlobStoreError, match=r"POLAR_BLOBS.*no answer \(.*[Cc]onnection refused") as failed:
                use()
            assert server.url in str(failed.value)
        server.start()
        assert store.get(ref) == b"kept"
        assert store.get(store.put(b"new").ref) == b"new"


@pytest.mark.contract
def test_a_restart_within_the_time_of_the_retries_goes_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "RETRIES", 60)
    monkeypatch.setattr(s3, "RETRY_S", 60)
    with s3_server(tmp_path / "server") as server, ThreadPoolExecutor(1) as thread:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        store = S3Blobs(S3Address(BUCKET, ""))
        server.kill()
        stored = thread.submit(store.put, b"patient")
        server.start()
        assert store.get(stored.result(90).ref) == b"patient"


@pytest.mark.contract
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another"}, "SignatureDoesNotMatch: AWS_SECRET_ACCESS_KEY doesn't belong"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "InvalidAccessKeyId: the server doesn't know this AWS_ACCESS_KEY_ID"),
    ],
)
def test_wrong_credentials_are_named_and_not_shown(
    address: S3Address, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = S3Blobs(address)
    use: Callable[[], object]
    for use in (lambda: store.put(b"new"), lambda: store.get(BLOB), lambda: store.refresh(BLOB)):
        with pytest.raises(BlobStoreError, match="POLAR_BLOBS") as failed:
            use()
        assert "another" not in str(failed.value)
        assert SECRET not in str(failed.value)
    assert "refuses these credentials" in str(failed.value), "the answer to HEAD has no reason"
    with pytest.raises(BlobStoreError, match=reason):
        store.check()


@pytest.mark.contract
def test_a_missing_bucket_is_no_missing_blob(server: S3Server) -> None:
    store = S3Blobs(S3Address("no-such-bucket", ""))
    for use in (lambda: store.put(b"new"), store.check):
        with pytest.raises(BlobStoreError, match="create the bucket"):
            use()


@pytest.mark.contract
def test_credentials_come_from_the_file_that_awss_tools_read(
    address: S3Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    file.write_text(f"[other]\nx = 1\n[polar]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "polar")
    store = S3Blobs(address)
    assert store.get(store.put(b"by file").ref) == b"by file"
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(NotReadyError, match=r"has no aws_access_key_id and aws_secret_access_key under \[other\]"):
        S3Blobs(address)
    file.write_text(SECRET)
    with pytest.raises(NotReadyError, match="isn't in the form of AWS's credentials file") as failed:
        S3Blobs(address)
    assert SECRET not in str(failed.value)


@pytest.mark.contract
def test_a_copy_is_read_without_the_server_and_never_for_a_write(address: S3Address, tmp_path: Path) -> None:
    far, copies = S3Blobs(address), tmp_path / "copies"
    near = CachedBlobs(far, copies)
    ref = near.put(b"for many sessions").ref
    assert not copies.exists(), "whoever writes a blob has no need of a copy"
    assert near.get(ref) == b"for many sessions"
    BucketPlace(address).damage(ref, b"changed far away")
    assert near.get(ref) == b"for many sessions"


# --- without a server


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    far = FolderBlobs(tmp_path / "far")
    near, copies = CachedBlobs(far, tmp_path / "near"), FolderBlobs(tmp_path / "near")
    ref = far.put(b"whole").ref
    near.fetch(ref)
    copies.path(ref).write_bytes(b"broken")
    with pytest.raises(DamagedBlobError, match=ref):
        near.get(ref)
    assert near.get(ref) == b"whole"


def test_damage_far_away_leaves_no_copy(tmp_path: Path) -> None:
    far = FolderBlobs(tmp_path / "far")
    ref = far.put(b"whole").ref
    far.path(ref).write_bytes(b"broken")
    with pytest.raises(DamagedBlobError, match=ref):
        CachedBlobs(far, tmp_path / "near").fetch(ref)
    assert [path for path in (tmp_path / "near").rglob("*") if path.is_file()] == []


def test_the_copies_that_were_used_last_stay(tmp_path: Path) -> None:
    far = FolderBlobs(tmp_path / "far")
    near, copies = CachedBlobs(far, tmp_path / "near", most_bytes=250), FolderBlobs(tmp_path / "near")
    refs = [far.put(bytes([number]) * 100).ref for number in range(4)]
    for number in (0, 1):
        near.fetch(refs[number])
        os.utime(copies.path(refs[number]), (number, number))
    near.fetch(refs[0])  # used again, so the other is the oldest
    near.fetch(refs[2])
    assert [copies.path(ref).exists() for ref in refs] == [True, False, True, False]
    assert near.get(refs[1]) == bytes([1]) * 100


def test_nobody_there_is_named_within_the_time_of_the_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(BlobStoreError, match=r"s3://nowhere/at-all at http.*\(POLAR_BLOBS\).*no answer"):
        S3Blobs(S3Address("nowhere", "at-all")).get(BLOB)


def test_settings_name_a_folder_or_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert blob_store.of(Settings(data=tmp_path)).place == str(tmp_path / "blobs")
    assert blob_store.of(Settings(blobs=str(tmp_path))).place == str(tmp_path)
    assert blob_store.of(Settings(blobs="s3://bucket/a/b/")).place == "s3://bucket/a/b"
    assert isinstance(blob_store.cached(Settings(blobs="s3://bucket")), CachedBlobs)
    assert isinstance(blob_store.cached(Settings(data=tmp_path)), FolderBlobs)


def test_a_ca_bundle_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    with pytest.raises(NotReadyError, match=r"AWS_CA_BUNDLE can't be read: .*/nowhere/ca.pem"):
        S3Blobs(S3Address("bucket", ""))
