"""Values to replay at a blob store that doesn't answer, or that gets too many: the call goes on without them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy import blob_writer
from proxy.blob_writer import Batch, BlobWriter
from proxy.chat import Answer, Message, ReplayValue, Usage
from proxy.metrics import ProxyMetrics
from proxy.replay_store import ReplayStore
from tests.waiting import eventually
from topics.environment.blobs import BlobRef, FolderBlobs
from topics.types.completion import ReplayField
from topics.types.replay import ReplayError
from topics.types.tokens import pack_ids


class HungBlobs(FolderBlobs):
    """A store that answers once it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_answer = threading.Event()
        self.writes = 0

    def write(self, blob: BlobRef, chunks: Iterable[bytes]) -> None:
        self.writes += 1
        self.may_answer.wait()
        super().write(blob, chunks)


ANSWER = Answer(Message("assistant", "one"), "stop", Usage(3, 1), pack_ids([1, 2, 3]), pack_ids([4]), b"\0" * 4, "m")


def answer(*values: ReplayValue, lost: dict[ReplayField, str] | None = None) -> Answer:
    return replace(ANSWER, replay=values, uncaptured=lost or {})


def value(data: bytes) -> ReplayValue:
    return ReplayValue("routed_experts", len(data), lambda: data)


async def test_a_reference_is_of_what_is_in_the_store(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    stored = await ReplayStore(BlobWriter(blobs), ProxyMetrics()).stored(
        "c", answer(value(b"x"), lost={"sampling_mask": "missing"}), Batch()
    )
    assert blobs.get(stored.stored["routed_experts"]) == b"x"
    assert (stored.uncaptured, stored.replay) == ({"sampling_mask": "missing"}, ())


async def test_a_store_that_hangs_costs_a_call_its_deadline_and_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_writer, "STORE_S", 0.05)
    blobs, metrics = HungBlobs(tmp_path), ProxyMetrics()
    store = ReplayStore(BlobWriter(blobs), metrics)
    stored = await store.stored("c", answer(value(b"x")), Batch())
    assert (stored.stored, stored.uncaptured) == ({}, {"routed_experts": "unstored"})
    assert b'polar_proxy_uncaptured_total{field="routed_experts",reason="unstored"} 1.0' in metrics.text()
    blobs.may_answer.set()


async def test_values_beyond_the_limit_on_memory_are_given_up_until_the_store_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the deadline: the thread still holds the value."""
    monkeypatch.setattr(blob_writer, "STORE_S", 0.05)
    monkeypatch.setattr(blob_writer, "PAUSE_S", 0.0)
    monkeypatch.setattr(blob_writer, "PENDING_BYTES", 5)
    blobs = HungBlobs(tmp_path)
    store = ReplayStore(writer := BlobWriter(blobs), ProxyMetrics())
    first, second = [await store.stored("c", answer(value(data)), Batch()) for data in (b"xxxx", b"yyyy")]
    assert (first.uncaptured, second.uncaptured) == ({"routed_experts": "unstored"}, {"routed_experts": "busy"})
    blobs.may_answer.set()
    await eventually(lambda: writer.pending_bytes == 0)
    monkeypatch.setattr(blob_writer, "STORE_S", 60.0)
    assert (await store.stored("c", answer(value(b"zzzz")), Batch())).uncaptured == {}


async def test_a_value_that_can_not_be_converted_is_left_out(tmp_path: Path) -> None:
    def encode() -> bytes:
        raise ReplayError("no array")

    stored = await ReplayStore(BlobWriter(FolderBlobs(tmp_path)), ProxyMetrics()).stored(
        "c", answer(ReplayValue("sampling_mask", 1, encode)), Batch()
    )
    assert stored.uncaptured == {"sampling_mask": "malformed"}
