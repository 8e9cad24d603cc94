"""The builder against a real broker: nothing on its log stops it, and what it can't use is told once."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.building import builder
from tests.integration.conftest import building, emitted, records_of
from tests.waiting import eventually
from topics import completions, dead_letters, events, trajectories
from topics.completions import Build, CallRecord, Disowned, Emitted, Open
from topics.contract.codec import encode
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import read_back
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.session import Status
from topics.types.tokens import IDS
from topics.types.trajectory import Trajectory

DEADLINE_S = 30.0
PARTITION = partition_of_task("t", completions.TOPIC.embedded_partitions)


async def write(log: LogProducer, *records: CallRecord) -> None:
    for record in records:
        await log.send(completions.TOPIC, record, key=getattr(record, "session_id", None) or "t", task_id="t")


async def garbage(settings: Settings) -> None:
    """Bytes that are no record, beside those of session `t.0`."""
    producer = kafka.producer(settings)
    await producer.start()
    name = completions.TOPIC.full_name(settings.namespace)
    await (await producer.send(name, b"\xff no record", key=b"t.0", partition=PARTITION))
    await producer.stop()


async def letters(settings: Settings) -> list[bytes]:
    """Dead letters."""
    topic = dead_letters.TOPIC.full_name(settings.namespace)
    return [record.value or b"" async for record in read_back(settings, topic, 0)]


def build(metadata: bytes = b"{}") -> Build:
    return Build("t.0", "t", 0, 1, 1, "a", Status.COMPLETED, "per_request", b"{}", "shell", metadata=metadata)


def call(tokens: int = 4) -> Completion:
    ids = np.random.default_rng(0).integers(0, 2**31 - 1, tokens, dtype=IDS).tobytes()
    prompt, messages = TokenDelta(b"\x01\0\0\0"), MessageDelta(b"[]")
    return Completion(
        "c", "t.0", 1, "a", CallOutcome.ANSWERED, "d", "e", 0, 0, prompt, messages, sampled=ids, logprobs=bytes(len(ids))
    )  # fmt: skip


@pytest.mark.parametrize("memory_limit", [builder.MEMORY_LIMIT, 0], ids=["in memory", "read again"])
async def test_bytes_that_are_no_record_are_told_once_and_cost_nothing(
    settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch, memory_limit: int
) -> None:
    monkeypatch.setattr(builder, "MEMORY_LIMIT", memory_limit)
    await write(log, Open("t.0", 1, "a"), call())
    await garbage(settings)
    async with building(settings):
        await eventually(lambda: letters(settings), DEADLINE_S)
        await write(log, build())
        trajectory = await emitted(settings)
    assert (trajectory.status, trajectory.stats.calls) == (Status.COMPLETED, 1)
    assert len(await letters(settings)) == 1


async def test_a_trajectory_at_its_topics_limit_is_said_to_be_too_large(settings: Settings, log: LogProducer) -> None:
    """Its framing counts, too. What fills it is random, so that compression gains nothing."""
    sampled = call(2000)
    bare = len(encode(PerRequest().build(BuiltFrom(build(), [sampled]))))
    full = build(np.random.default_rng(1).bytes(trajectories.TOPIC.max_bytes - bare - 1))
    assert len(encode(PerRequest().build(BuiltFrom(full, [sampled])))) == trajectories.TOPIC.max_bytes
    await write(log, Open("t.0", 1, "a"), sampled, full)
    async with building(settings):
        trajectory = await emitted(settings)
    assert trajectory.error is not None
    assert (trajectory.status, trajectory.error.code) == (Status.FAILED, "too_large")


class Held:
    """A builder plug-in whose builds wait until the test lets them go."""

    begun, let_go = threading.Event(), threading.Event()

    def build(self, source: BuiltFrom) -> Trajectory:
        self.begun.set()
        assert self.let_go.wait(DEADLINE_S)
        return PerRequest().build(source)


async def test_a_build_whose_session_was_opened_anew_is_void_however_it_ends(
    settings: Settings, log: LogProducer
) -> None:
    held = msgspec.structs.replace(build(), builder=f"{__name__}:Held")
    await write(log, Open("t.0", 1, "a"), call(), held)
    async with building(settings):
        assert await asyncio.to_thread(Held.begun.wait, DEADLINE_S)
        await write(log, Open("t.0", 2, "b"))
        await garbage(settings)
        await eventually(lambda: letters(settings), DEADLINE_S)  # so that what lies before it was read
        Held.let_go.set()
        again = msgspec.structs.replace(call(7), call_id="d", attempt=2, claim_id="b")
        await write(log, again, msgspec.structs.replace(build(), attempt=2, claim_id="b"))
        trajectory = await emitted(settings)
    assert (trajectory.attempt, [one.call_id for one in trajectory.calls]) == (2, ["d"])


async def test_an_output_topic_that_was_deleted_is_made_again(settings: Settings, log: LogProducer) -> None:
    await write(log, Open("t.0", 1, "a"), call(), msgspec.structs.replace(build(), output="gone"))
    gone = trajectories.topic("gone")

    async def found() -> list[object]:
        is_there = gone.full_name(settings.namespace) in {each.name for each in await admin.listing(settings)}
        return await records_of(settings, gone) if is_there else []

    async with building(settings):
        assert [type(record) for record in await eventually(found, DEADLINE_S, every_s=0.1)] == [Trajectory]


def opened(session_id: str, *records: CallRecord) -> list[CallRecord]:
    return [Open(session_id, 1, "a"), *records]


def built(session_id: str) -> Build:
    return msgspec.structs.replace(build(), session_id=session_id, sample_index=int(session_id.partition(".")[2]))


async def sessions_emitted(settings: Settings, count: int) -> list[str]:
    """The sessions of so many trajectories, in the order in which they were written."""

    async def found() -> list[str]:
        written = await records_of(settings, trajectories.TOPIC, Trajectory)
        return [each.session_id for each in written] if len(written) >= count else []

    return await eventually(found, DEADLINE_S, every_s=0.1)


async def test_a_session_that_is_open_when_its_builder_ends_is_built_by_the_next(
    settings: Settings, log: LogProducer
) -> None:
    await write(log, *opened("t.0", call()), *opened("t.1", built("t.1")))
    async with building(settings):
        assert await sessions_emitted(settings, 1) == ["t.1"]
    async with building(settings):
        await write(log, built("t.0"))
        assert await sessions_emitted(settings, 2) == ["t.1", "t.0"]
    (trajectory,) = [
        each for each in await records_of(settings, trajectories.TOPIC, Trajectory) if each.session_id == "t.0"
    ]
    assert trajectory.stats.calls == 1, "its call lay before what the first builder had read"


async def test_a_builder_emits_nothing_before_it_knows_all_that_is_emitted(
    settings: Settings, log: LogProducer
) -> None:
    """The last builder died before it committed how far it was: its `Emitted` lies more than a fetch behind the `Build`."""
    await write(log, *opened("t.0"), *opened("t.1", built("t.1")))
    between = [Disowned(f"call{n}", "t.0", "a", "closed") for n in range(2 * builder.FETCH_RECORDS)]
    await asyncio.gather(*(write(log, each) for each in between))
    await write(log, Emitted("t", "t.1"), built("t.0"))
    async with building(settings):
        assert await sessions_emitted(settings, 1) == ["t.0"]


async def test_a_trajectory_is_written_only_together_with_the_fact_for_the_coordinator(
    settings: Settings, log: LogProducer
) -> None:
    """Kafka takes the trajectory and refuses the fact, until its limit is raised."""
    source = kafka.TopicPartition(trajectories.TOPIC.full_name(settings.namespace), PARTITION)
    await admin.apply(settings, [replace(events.TOPIC, config={"max.message.bytes": "100"})], embedded=True)
    await write(log, Open("t.0", 1, "a"), call(), build())
    async with building(settings), kafka.started(kafka.consumer(settings, committed=False), DEADLINE_S) as reader:

        async def tried() -> bool:
            return (await reader.end_offsets([source]))[source] > 0

        await eventually(tried, DEADLINE_S, every_s=0.1)
        assert await records_of(settings, trajectories.TOPIC) == []
        await admin.apply(settings, [events.TOPIC], embedded=True)
        await emitted(settings)
