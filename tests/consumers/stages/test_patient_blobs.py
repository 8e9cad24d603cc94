"""Stages wait for a blob store that doesn't answer, and no longer than they should."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from consumers.stages.artifacts import stored
from consumers.stages.patient_blobs import fetch, patiently
from tests.s3_server import BUCKET, KEY_ID, SECRET, s3_server
from tests.serving import free_port
from tests.waiting import eventually
from topics.environment import s3
from topics.environment.blob_cache import CachedBlobs
from topics.environment.blobs import BlobRef, BlobStoreError, FolderBlobs
from topics.environment.s3 import S3Address
from topics.environment.s3_blobs import S3Blobs
from topics.types.errors import NotReadyError
from topics.types.task import Content, PrepareAction

BLOB = BlobRef(f"blob:sha256/{'0' * 64}", 1)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> S3Blobs:
    """A store at an address where nobody listens."""
    monkeypatch.setattr(s3, "RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return S3Blobs(S3Address("nowhere", ""))


def upload(ref: BlobRef) -> PrepareAction:
    content = Content(ref=ref.ref, size=ref.size)
    return PrepareAction(type="upload_file", source="file", target="file", content=content)


async def test_an_outage_that_does_not_end_is_raised_in_time(nobody: S3Blobs) -> None:
    with pytest.raises(BlobStoreError, match="POLAR_BLOBS"):
        await patiently(lambda: nobody.get(BLOB.ref), 0.1)


async def test_an_upload_that_does_not_come_is_named_with_the_setting(nobody: S3Blobs, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=rf"^{BLOB.ref} can't be brought to this worker: .*POLAR_BLOBS"):
        await fetch(CachedBlobs(nobody, tmp_path), [upload(BLOB)], 0.1)


async def test_a_missing_upload_is_left_to_the_action_that_names_it(tmp_path: Path) -> None:
    await fetch(CachedBlobs(FolderBlobs(tmp_path / "far"), tmp_path / "near"), [upload(BLOB)], 30.0)


@pytest.mark.contract
async def test_what_an_outage_holds_up_goes_on_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRIES", 0)
    with s3_server(tmp_path / "s3") as server:
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        blobs = S3Blobs(S3Address(BUCKET, ""))
        given = blobs.put(b"content")
        near = CachedBlobs(blobs, tmp_path / "near")
        server.kill()
        with capture_logs() as lines:
            storing = asyncio.create_task(stored(blobs, "r-1", {"patch": b"changes"}, 120.0))
            fetching = asyncio.create_task(fetch(near, [upload(given)], 120.0))
            await eventually(lambda: len([line for line in lines if line["action"] == "blobs.unreachable"]) >= 2, 60.0)
            await asyncio.to_thread(server.start)
            (ref,) = (await storing).values()
            await fetching
        assert blobs.get(ref) == b"changes"
        server.kill()
        assert near.get(given.ref) == b"content"
        server.start()
