"""Images on their way to the blob store: what a store that fails or hangs costs, and who waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from proxy import blob_writer
from proxy.blob_writer import Batch, BlobWriter
from proxy.call import CallTask, Pipeline
from proxy.capture import CallSpec, Capture
from proxy.chat import Answer, ChatRequest, ImagePart, ImageUrl, Message, Usage
from proxy.engine_processes import EngineProcesses
from proxy.engines.pool import Engines
from proxy.engines.replicas import Replicas
from proxy.errors import RefusalError
from proxy.fleet import Fleet
from proxy.media import PromptMedia
from proxy.metrics import ProxyMetrics
from proxy.policy import VersionAttribution
from proxy.session.claim_state import ClaimState
from proxy.session.endings import Ending
from proxy.session.history import transcript
from tests.proxy.test_media import BLUE, KEY, RED, Session, image, kept_in, rendered, user
from tests.proxy.test_replay_store import HungBlobs
from tests.waiting import eventually
from topics.calls.delta import Spelled
from topics.environment.blobs import BlobRef, FolderBlobs
from topics.environment.settings import Settings
from topics.log.producer import LogProducer
from topics.types.tokens import pack_ids

ANSWER = Message("assistant", "one")


class Counted(FolderBlobs):
    """Counts what is put, and refuses the first `failing` times."""

    def __init__(self, folder: Path, failing: int = 0) -> None:
        super().__init__(folder)
        self.failing = failing
        self.puts = 0

    def put(self, data: bytes) -> BlobRef:
        self.puts += 1
        if self.puts <= self.failing:
            raise OSError("down")
        return super().put(data)


def answered(messages: list[Message]) -> Answer:
    prompt = rendered(messages)
    ids, positions = pack_ids(prompt.ids), tuple(prompt.positions)
    return Answer(ANSWER, "stop", Usage(1, 1), ids, pack_ids([1]), b"\0" * 4, "m", media_positions=positions)


async def test_a_store_that_hangs_costs_one_deadline_for_all_images_and_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_writer, "STORE_S", 0.2)
    blobs, metrics = HungBlobs(tmp_path), ProxyMetrics()
    session = Session(has_positions=True, media=PromptMedia(BlobWriter(blobs), metrics))
    images = [b"%d" % number for number in range(12)]
    with capture_logs() as logged:
        async with asyncio.timeout(2):  # one after another they would take 2.4 s
            first = await session.ask([user("x", *images)], "one")
            second = await session.ask([user("y", *images)], "one")
    assert [medium.digest for medium in first.media] == [medium.digest for medium in second.media]
    assert {medium.blob for medium in first.media + second.media} == {None}
    assert b'polar_proxy_media_unstored_total{reason="unstored"} 24.0' in metrics.text()
    assert [entry["action"] for entry in logged] == ["blob_not_stored"], "once a minute"
    blobs.may_answer.set()


async def test_once_the_store_answers_again_a_call_stores_all_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_writer, "STORE_S", 0.05)
    monkeypatch.setattr(blob_writer, "PAUSE_S", 0.0)
    blobs = HungBlobs(tmp_path)
    session = Session(has_positions=True, media=kept_in(blobs))
    first = await session.ask([user("x", RED)], "one")
    monkeypatch.setattr(blob_writer, "STORE_S", 60.0)
    monkeypatch.setattr(blob_writer, "PAUSE_S", 3600.0)
    blobs.may_answer.set()
    second = await session.ask([user("y", RED, BLUE, b"white")], "two")
    assert [medium.blob for medium in first.media] == [None]
    assert [blobs.get(medium.blob or "") for medium in second.media] == [RED, BLUE, b"white"]


async def test_images_beyond_the_limit_on_memory_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_writer, "PENDING_BYTES", 5)
    metrics = ProxyMetrics()
    session = Session(has_positions=True, media=PromptMedia(BlobWriter(FolderBlobs(tmp_path)), metrics))
    call = await session.ask([user("x", b"123456")], "one")
    assert [medium.blob for medium in call.media] == [None]
    assert b'polar_proxy_media_unstored_total{reason="busy"} 1.0' in metrics.text()


async def test_an_image_that_was_not_stored_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    blobs = Counted(tmp_path, failing=1)
    session = Session(has_positions=False, media=kept_in(blobs))
    first = await session.ask([user("x", RED)], "one")
    talk = [user("x", RED), ANSWER, user("y", BLUE)]
    second = await session.ask(talk, "two")
    third = await session.ask([*talk, Message("assistant", "two"), user("z")], "three")
    assert first.media[0].blob is None
    assert [blobs.get(medium.blob or "") for medium in second.media] == [RED, BLUE], "also the one of the first"
    assert (third.media, session.media_of(third), blobs.puts) == ([], second.media, 3)
    [trace] = session.built().expanded()
    assert [medium.blob for medium in trace.media] == [medium.blob for medium in second.media]


async def test_the_choices_of_a_request_store_an_image_once_also_if_one_is_given_up(tmp_path: Path) -> None:
    blobs = HungBlobs(tmp_path)
    metrics, claim, messages = ProxyMetrics(), ClaimState(KEY), [user("x", RED)]
    media, request, said = (
        PromptMedia(BlobWriter(blobs), metrics),
        ChatRequest(messages),
        transcript(Spelled(messages), []),
    )
    choices = [
        asyncio.create_task(media.of(request, said, claim.history, answered(messages), Batch())) for _ in range(3)
    ]
    await eventually(lambda: blobs.writes == 1)
    choices[0].cancel()
    blobs.may_answer.set()
    _, second, third = await asyncio.gather(*choices, return_exceptions=True)
    assert second == third
    assert not isinstance(second, BaseException)
    assert (blobs.get(second[0].blob or ""), blobs.writes) == (RED, 1)


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        ("Image/PNG", "image/png"),
        ("image/svg+xml", "image/svg+xml"),
        ("", None),
        ("z" * 65, None),
        ("image/png\n", None),
        ("bild/größe", None),
    ],
)
async def test_a_type_is_recorded_only_if_it_is_short_and_spelled_as_one(head: str, kept: str | None) -> None:
    url = image(RED).url.replace("image/png", head)
    call = await Session(has_positions=True).ask([Message("user", [ImagePart(ImageUrl(url))])], "one")
    assert [(medium.media_type, medium.unproven) for medium in call.media] == [(kept, False)]


class Answering:
    """An inference server that answers each call at once."""

    owns_prompts: ClassVar[bool] = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def complete(self, request: ChatRequest, session_id: str) -> Answer:
        return answered(request.messages)

    async def count_tokens(self, request: ChatRequest) -> int:
        return 1

    async def detokenize(self, token_ids: list[int]) -> str:
        return ""

    async def is_healthy(self) -> bool:
        return True


async def test_a_call_whose_harness_hangs_up_while_images_are_stored_is_abandoned(tmp_path: Path) -> None:
    """The producer is stopped, so that its record is counted as lost."""
    producer = LogProducer(Settings())
    await producer.stop()
    blobs, metrics, messages = HungBlobs(tmp_path), ProxyMetrics(), [user("x", RED)]
    capture, fleet = Capture(producer, metrics), Fleet(lambda: None)
    versions = VersionAttribution(EngineProcesses({}, lambda _: None), metrics)
    engines = Engines([Replicas("default", {"http://engine": Answering()}, model="m", concurrency=1)])
    media = PromptMedia(BlobWriter(blobs), metrics)
    pipeline = Pipeline(engines, producer, capture, fleet, versions, metrics, media)
    spec = CallSpec(
        "c0", ClaimState(KEY), "openai_chat", "default", ChatRequest(messages), transcript(Spelled(messages), []), 0.0
    )
    call = CallTask(pipeline, spec, 1)
    await eventually(lambda: blobs.writes == 1)
    call.end(Ending.HUNG_UP)
    assert isinstance(await call.answer, RefusalError)
    blobs.may_answer.set()
    await capture.settle(1.0)
    text = metrics.text().decode()
    assert 'polar_proxy_calls_total{dialect="openai_chat",outcome="abandoned"} 1.0' in text
    assert 'polar_proxy_unrecorded_total{record="completion"} 1.0' in text
    assert "polar_proxy_disowned_total{" not in text
