"""A blob store that hangs: which values wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy import blob_writer
from proxy.blob_writer import BlobWriter, UnstoredError
from tests.proxy.test_replay_store import HungBlobs
from tests.waiting import eventually

LONG_S = 3600.0


async def put(writer: BlobWriter, data: bytes, within_s: float = LONG_S) -> str:
    return await writer.put(len(data), lambda: data, asyncio.get_running_loop().time() + within_s)


async def is_given_up(writer: BlobWriter, data: bytes, within_s: float = LONG_S) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(UnstoredError, match="unstored"):
            await put(writer, data, within_s)


async def test_after_a_deadline_values_are_given_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_writer, "PAUSE_S", LONG_S)
    writer = BlobWriter(blobs := HungBlobs(tmp_path))
    await is_given_up(writer, b"first", within_s=0.05)
    await is_given_up(writer, b"second")
    blobs.may_answer.set()


async def test_after_the_pause_one_value_is_tried_and_the_others_do_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BlobWriter(blobs := HungBlobs(tmp_path))
    monkeypatch.setattr(blob_writer, "PAUSE_S", 0.0)
    await is_given_up(writer, b"first", within_s=0.05)
    monkeypatch.setattr(blob_writer, "PAUSE_S", LONG_S)
    trying = asyncio.create_task(put(writer, b"second"))
    await eventually(lambda: writer.pending_bytes >= len(b"second"))
    await is_given_up(writer, b"third")
    blobs.may_answer.set()
    assert blobs.get(await trying) == b"second"
    assert blobs.get(await put(writer, b"fourth")) == b"fourth"
