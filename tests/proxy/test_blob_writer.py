"""A blob store that hangs, or is slow: which values wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy import blob_writer
from proxy.blob_writer import Batch, BlobWriter, UnstoredError
from tests.proxy.test_replay_store import HungBlobs
from tests.waiting import eventually

LONG_S = 3600.0


def batch(within_s: float = LONG_S) -> Batch:
    return Batch(asyncio.get_running_loop().time() + within_s)


async def put(writer: BlobWriter, data: bytes, call: Batch | None = None) -> str:
    return await writer.put(len(data), lambda: data, call or batch())


async def is_given_up(writer: BlobWriter, data: bytes, call: Batch | None = None) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(UnstoredError, match="unstored"):
            await put(writer, data, call)


async def hung_once(blobs: HungBlobs, monkeypatch: pytest.MonkeyPatch) -> BlobWriter:
    """A writer that will try the store again with the next value, after which a pause would be long."""
    writer = BlobWriter(blobs)
    monkeypatch.setattr(blob_writer, "PAUSE_S", 0.0)
    await is_given_up(writer, b"first", batch(0.05))
    monkeypatch.setattr(blob_writer, "PAUSE_S", LONG_S)
    return writer


@pytest.mark.parametrize("worked", [False, True])
async def test_after_a_deadline_in_which_nothing_was_stored_values_are_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worked: bool
) -> None:
    """Whether the store worked before or never."""
    monkeypatch.setattr(blob_writer, "PAUSE_S", LONG_S)
    monkeypatch.setattr(blob_writer, "STORE_S", 0.05)
    writer = BlobWriter(blobs := HungBlobs(tmp_path))
    if worked:
        blobs.may_answer.set()
        await put(writer, b"before")
        blobs.may_answer.clear()
    await is_given_up(writer, b"first", Batch())
    await is_given_up(writer, b"second")
    blobs.may_answer.set()


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_a_store_that_has_just_finished_a_value_is_used_on_whatever_a_call_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_awaited: bool
) -> None:
    """One call may bring more than a slow store takes in time. A finished value counts also if its call waits no more."""
    blobs = HungBlobs(tmp_path)
    writer = BlobWriter(blobs) if is_awaited else await hung_once(blobs, monkeypatch)
    monkeypatch.setattr(blob_writer, "PAUSE_S", LONG_S)
    blobs.may_answer.set()
    if is_awaited:
        await put(writer, b"first")
    await eventually(lambda: writer.pending_bytes == 0)
    blobs.may_answer.clear()
    await is_given_up(writer, b"of a backlog", batch(0.05))
    blobs.may_answer.set()
    assert blobs.get(await put(writer, b"another session's")) == b"another session's"


async def test_after_the_pause_one_value_is_tried_and_those_of_other_calls_do_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await hung_once(blobs := HungBlobs(tmp_path), monkeypatch)
    trying = asyncio.create_task(put(writer, b"second"))
    await eventually(lambda: writer.pending_bytes >= len(b"second"))
    await is_given_up(writer, b"third")
    blobs.may_answer.set()
    assert blobs.get(await trying) == b"second"
    assert blobs.get(await put(writer, b"fourth")) == b"fourth"


async def test_a_call_that_finds_the_store_working_after_the_pause_stores_all_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, call = await hung_once(blobs := HungBlobs(tmp_path), monkeypatch), batch()
    blobs.may_answer.set()
    refs = await asyncio.gather(*(put(writer, b"%d" % number, call) for number in range(3)))
    assert [blobs.get(ref) for ref in refs] == [b"0", b"1", b"2"]


async def test_a_call_that_finds_the_store_hanging_after_the_pause_tries_one_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, call = await hung_once(blobs := HungBlobs(tmp_path), monkeypatch), batch(0.05)
    await asyncio.gather(*(is_given_up(writer, b"%d" % number, call) for number in range(3)))
    assert blobs.writes == 2, "with the one before the pause"
    blobs.may_answer.set()
