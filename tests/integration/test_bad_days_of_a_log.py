"""One broker whose log loses records, to retention or to its disk: what was lost is said, never passed over, and nothing is read twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from consumers.building import builder
from consumers.rebuild import run
from consumers.rebuild.request import RebuildRequest
from polar.embedded import Broker
from tests.integration.conftest import building, emitted, expire, records_of
from tests.lost_topics import delete
from tests.waiting import eventually
from topics import completions, control, trajectories
from topics.completions import Build, CallRecord, Open
from topics.contract.topic import Topic
from topics.control import Drain
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import TopicPartition
from topics.log.owner import LogGapError, position_within_log, read_back
from topics.log.partition import partition_of_task
from topics.log.producer import Ack, LogProducer, UnacknowledgedError
from topics.types.completion import CallOutcome, Completion, MessageDelta, TokenDelta
from topics.types.errors import NotReadyError
from topics.types.session import Status
from topics.types.tokens import IDS
from topics.types.trajectory import Trajectory

pytestmark = pytest.mark.hard

DEADLINE_S = 60.0
PARTITION = partition_of_task("t", completions.TOPIC.embedded_partitions)
TOKENS = np.arange(8, dtype=IDS)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("forgetful"), announce=print) as started:
        yield started


@pytest.fixture(scope="module")
def kafka(broker: Broker) -> str:
    """In place of the suite's broker."""
    return broker.bootstrap


async def write(log: LogProducer, *records: CallRecord) -> list[int]:
    """Offsets of the records of session `t.0`."""
    return [(await sent(log, completions.TOPIC, record, "t.0")).offset for record in records]


async def sent(log: LogProducer, topic: Topic, record: msgspec.Struct, key: str) -> Ack:
    """As a harness asks again: a broker that has forgotten records refuses a producer's next one, which is replaced."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await log.send(topic, record, key=key, task_id="t")
            except UnacknowledgedError:
                await asyncio.sleep(0.1)


def call(number: int) -> Completion:
    """A call that goes on from the one before it."""
    base = f"c{number - 1}" if number else None
    shared = 16 * number
    return Completion(
        f"c{number}", "t.0", 1, "a", CallOutcome.ANSWERED, "d", "e", 0, 0,
        TokenDelta(TOKENS.tobytes(), shared, base),
        MessageDelta(b'[{"role":"user"}]', 2 * number, base),
        sampled=TOKENS.tobytes(), logprobs=bytes(TOKENS.nbytes), answer=b'{"role":"assistant"}',
    )  # fmt: skip


OPEN = Open("t.0", 1, "a")
BUILD = Build("t.0", "t", 0, 1, 1, "a", Status.COMPLETED, "prefix_merging", b"{}", "shell")


def segment(settings: Settings, broker: Broker, name: str, partition: int) -> Path:
    """A partition's only log file."""
    (found,) = (broker._folder.data / f"{settings.namespace}.{name}-{partition}").glob("*.log")
    return found


def cut(broker: Broker, log_file: Path, keep: int) -> None:
    """Kill the broker, take all but `keep` bytes of a partition's log away, and start it again."""
    broker.kill()
    os.truncate(log_file, keep)
    broker.start()


def said(trajectory: Trajectory) -> tuple[Status, str | None, int]:
    code = None if trajectory.error is None else trajectory.error.code
    return trajectory.status, code, trajectory.stats.trainable_tokens


GAP = (Status.FAILED, "log_gap", 0)


@pytest.mark.parametrize("memory_limit", [builder.MEMORY_LIMIT, 0], ids=["in memory", "spilled"])
async def test_a_session_that_retention_overtakes_is_whole_or_says_what_it_lacks(
    settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch, memory_limit: int
) -> None:
    monkeypatch.setattr(builder, "MEMORY_LIMIT", memory_limit)
    async with building(settings):
        await write(log, OPEN, call(0))
        await _read_by_the_builder(settings, log)
        (last,) = await write(log, call(1))
        await expire(settings, last)
        await write(log, BUILD)
        trajectory = await emitted(settings)
    assert said(trajectory) == (GAP if memory_limit == 0 else (Status.COMPLETED, None, 16))


async def _read_by_the_builder(settings: Settings, log: LogProducer, sample: int = 1) -> None:
    """Another session's trajectory in the same partition tells that all before it was read."""
    other = msgspec.structs.replace
    key = f"t.{sample}"
    await admin.apply(settings, [trajectories.topic("other")], embedded=True)
    await log.send(completions.TOPIC, other(OPEN, session_id=key), key=key, task_id="t")
    await log.send(
        completions.TOPIC,
        other(BUILD, session_id=key, sample_index=sample, num_samples=sample + 1, output="other"),
        key=key,
        task_id="t",
    )

    async def is_out() -> bool:
        return len(await records_of(settings, trajectories.topic("other"))) >= sample

    await eventually(is_out, DEADLINE_S, every_s=0.1)


async def test_a_session_whose_calls_have_left_before_anyone_read_them_says_so(
    settings: Settings, log: LogProducer
) -> None:
    offsets = await write(log, OPEN, call(0), call(1), BUILD)
    await expire(settings, offsets[2])
    async with building(settings):
        assert said(await emitted(settings)) == GAP


@pytest.mark.parametrize("running", [True, False], ids=["under a builder", "before a builder"])
async def test_calls_that_a_cut_log_has_lost_are_said_and_not_trained_around(
    broker: Broker, settings: Settings, log: LogProducer, running: bool
) -> None:
    async def lose() -> None:
        await write(log, OPEN, call(0))
        if running:
            await _read_by_the_builder(settings, log)
        log_file = segment(settings, broker, "completions", PARTITION)
        keep = log_file.stat().st_size
        await write(log, call(1), call(2))
        if running:  # so that it stands beyond the end of what is left
            await _read_by_the_builder(settings, log, 2)
        await asyncio.to_thread(cut, broker, log_file, keep)
        await write(log, call(3), BUILD)

    if running:
        async with building(settings):
            await lose()
            trajectory = await emitted(settings)
    else:
        await lose()
        async with building(settings):
            trajectory = await emitted(settings)
    assert said(trajectory) == GAP
    assert trajectory.error is not None
    assert "c2" in trajectory.error.message


async def test_a_follower_goes_on_where_a_cut_log_does_and_reads_nothing_twice(
    broker: Broker, settings: Settings, log: LogProducer
) -> None:
    seen: list[str] = []
    follower = Follower(settings, control.TOPIC, lambda drain, _: seen.append(drain.worker_id), since=Since.BEGINNING)
    await follower.start()
    await drains(log, "a", "b")
    log_file = segment(settings, broker, "control", 0)
    keep = log_file.stat().st_size
    await drains(log, "c", "d", "e")
    await follower.caught_up(DEADLINE_S)
    await asyncio.to_thread(cut, broker, log_file, keep)
    async with asyncio.timeout(DEADLINE_S):
        while "new" not in seen:  # what lies before the follower has found the log's end is lost with the cut
            await drains(log, "new")
            await asyncio.sleep(0.2)
    await follower.caught_up(DEADLINE_S)
    await follower.stop()
    assert seen[:5] == ["a", "b", "c", "d", "e"]
    assert set(seen[5:]) == {"new"}


async def test_a_follower_sees_all_of_a_topic_that_was_made_again(settings: Settings, log: LogProducer) -> None:
    seen: list[str] = []
    follower = Follower(settings, control.TOPIC, lambda drain, _: seen.append(drain.worker_id), since=Since.BEGINNING)
    await follower.start()
    await drains(log, "a", "b", "c")
    await eventually(lambda: len(seen) == 3, DEADLINE_S)
    await delete(settings, control.TOPIC)
    await admin.apply(settings, [control.TOPIC], embedded=True)
    await drains(log, "d", "e")
    await eventually(lambda: len(seen) >= 5, DEADLINE_S)
    await follower.stop()
    assert seen == ["a", "b", "c", "d", "e"]


async def drains(log: LogProducer, *workers: str) -> None:
    for worker in workers:
        await sent(log, control.TOPIC, Drain(worker), worker)


async def test_a_position_that_the_log_no_longer_has_moves_to_its_beginning(
    settings: Settings, log: LogProducer
) -> None:
    source = TopicPartition(completions.TOPIC.full_name(settings.namespace), PARTITION)
    offsets: Sequence[int] = await write(log, OPEN, call(0), call(1))
    await expire(settings, offsets[1])
    assert [await position_within_log(settings, source, position) for position in (0, 2, 3, 70)] == [1, 2, 3, 1]
    with pytest.raises(LogGapError, match="begins at 1; 0 has left it"):
        _ = [record async for record in read_back(settings, source.topic, PARTITION, 0)]


async def test_a_kafka_that_leaves_a_rebuild_is_said_and_the_command_goes_on_from_there(
    broker: Broker, settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(log, OPEN, call(0), BUILD)
    look, wanted = run._make_output, RebuildRequest("again")

    async def look_and_lose(*arguments: Any) -> None:
        await look(*arguments)
        await asyncio.to_thread(broker.kill)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(run, "_make_output", look_and_lose)
            with pytest.raises(NotReadyError, match="the same command goes on from here"):
                await run.rebuild(settings, wanted)
    finally:
        await asyncio.to_thread(broker.start)
    assert (await run.rebuild(settings, wanted)).sessions == 1
