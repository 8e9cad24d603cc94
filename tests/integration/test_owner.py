"""Fenced ownership against a real broker."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections import Counter
from dataclasses import replace

import pytest

from topics import sessions
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import FencedProducer, OwnershipLostError, PartitionOwner, Write, read_back

DEADLINE_S = 30.0


def row(settings: Settings, value: bytes | None, partition: int = 0) -> Write:
    return Write(sessions.TOPIC.full_name(settings.namespace), partition, b"key", value)


async def values(settings: Settings, start: int | None = None) -> list[bytes | None]:
    topic = sessions.TOPIC.full_name(settings.namespace)
    async with asyncio.timeout(DEADLINE_S):
        return [record.value async for record in read_back(settings, topic, 0, start)]


async def committed(producer: FencedProducer, writes: list[Write]) -> list[int]:
    await producer.begin()
    offsets = await producer.write(writes)
    await producer.commit()
    return offsets


async def test_reading_back_passes_commit_markers_and_ends(settings: Settings) -> None:
    assert await values(settings) == []
    producer = FencedProducer(settings, "test.0")
    await producer.start()
    assert await committed(producer, [row(settings, b"a"), row(settings, None)]) == [0, 1]
    assert await committed(producer, [row(settings, b"b")]) == [3]
    assert await values(settings) == [b"a", None, b"b"]
    assert await values(settings, 3) == [b"b"]
    await producer.stop()


async def test_a_reader_that_never_reached_kafka_is_closed(settings: Settings) -> None:
    """Else its connections and tasks are left to the collector, once for each try while Kafka is away."""
    away = settings.model_copy(update={"kafka": "127.0.0.1:1"})
    with pytest.raises(kafka.KafkaError):
        _ = [record async for record in read_back(away, sessions.TOPIC.full_name(settings.namespace), 0)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in told if "AIOKafka" in str(one.message)] == []


async def test_a_predecessor_is_fenced_and_its_open_transaction_is_never_seen(settings: Settings) -> None:
    first = FencedProducer(settings, "test.0")
    await first.start()
    await committed(first, [row(settings, b"a")])
    await first.begin()
    await first.write([row(settings, b"never")])
    second = FencedProducer(settings, "test.0")
    await second.start()
    assert await values(settings) == [b"a"]
    with pytest.raises(OwnershipLostError):
        await first.commit()
    await committed(second, [row(settings, b"b")])
    assert await values(settings) == [b"a", b"b"]
    await first.stop()
    await second.stop()


async def test_an_abandoned_transaction_hides_later_rows_for_seconds_only(settings: Settings) -> None:
    """Its owner hangs or is gone, and another partition's owner, which doesn't fence it, writes after it."""
    gone, other = FencedProducer(settings, "gone"), FencedProducer(settings, "other")
    await gone.start()
    await gone.begin()
    await gone.write([row(settings, b"never")])
    await other.start()
    await committed(other, [row(settings, b"after")])
    assert await values(settings) == [b"after"], "read to the high watermark, and not to the end that readers see"
    await other.stop()
    await gone.stop(0.0)


async def test_a_transaction_lacks_no_record_that_the_broker_refused(settings: Settings) -> None:
    """aiokafka commits the others."""
    producer = FencedProducer(settings, "test.0")
    await producer.start()
    await producer.begin()
    await admin.apply(settings, [replace(sessions.TOPIC, max_bytes=1_000)], embedded=True)
    too_large = row(settings, os.urandom(10_000))
    with pytest.raises(OwnershipLostError, match="MessageSizeTooLarge"):
        await producer.write([row(settings, b"a"), too_large, row(settings, b"b")])
    await producer.stop()


async def test_a_step_that_hangs_has_failed(settings: Settings) -> None:
    producer = FencedProducer(settings, "test.0")
    with pytest.raises(OwnershipLostError, match="TimeoutError"):
        await producer._guarded(asyncio.Event().wait(), 0.05)
    await producer.stop()


async def test_a_paused_owner_is_fenced_by_whoever_owns_its_partition_next(settings: Settings) -> None:
    """Its keeper starts anew, with a producer that fences in turn; the keepers of other partitions notice nothing."""
    kept: Counter[int] = Counter()
    fenced = asyncio.Event()
    again = asyncio.Event()

    async def keep(partition: int, producer: FencedProducer) -> None:
        kept[partition] += 1
        if kept[0] == 2:
            again.set()
        if kept.total() == sessions.TOPIC.embedded_partitions:
            begun.set()
        await fenced.wait()
        await committed(producer, [row(settings, b"mine", partition)])
        await asyncio.Event().wait()

    begun, stop = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(PartitionOwner(settings, "test", sessions.TOPIC, keep).run(stop))
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
        successor = FencedProducer(settings, "test.0")
        await successor.start()
        fenced.set()
        await again.wait()
        stop.set()
        await running
    assert kept == {0: 2, 1: 1, 2: 1, 3: 1}
    await successor.stop()


async def test_each_partition_has_one_keeper_and_a_failed_one_starts_again(settings: Settings) -> None:
    kept: dict[int, int] = {}
    failed: set[int] = set()
    all_kept = asyncio.Event()

    async def keep(partition: int, producer: FencedProducer) -> None:
        if partition == 2 and partition not in failed:
            failed.add(partition)
            raise OwnershipLostError("once")
        kept[partition] = kept.get(partition, 0) + 1
        await committed(producer, [row(settings, b"mine", partition)])
        if len(kept) == sessions.TOPIC.embedded_partitions:
            all_kept.set()
        await asyncio.Event().wait()

    stops = [asyncio.Event(), asyncio.Event()]
    owners = [PartitionOwner(settings, "test", sessions.TOPIC, keep) for _ in stops]
    running = [asyncio.create_task(owner.run(stop)) for owner, stop in zip(owners, stops, strict=True)]
    async with asyncio.timeout(DEADLINE_S):
        await all_kept.wait()
        stops[0].set()
        await running[0]
        while owners[1].partitions != [0, 1, 2, 3]:
            await asyncio.sleep(0.05)
        stops[1].set()
        await running[1]
    assert failed == {2}


async def test_reading_back_an_empty_partition_doesnt_cancel_its_caller(settings: Settings) -> None:
    topic = sessions.TOPIC.full_name(settings.namespace)
    for _ in range(5):
        assert [record async for record in read_back(settings, topic, 3, 0)] == []


async def test_a_cancel_that_comes_as_a_step_ends_is_heard(settings: Settings) -> None:
    """Or an owner that is told to let go of its partition would go on with it, and the next one would never begin."""
    step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    producer = FencedProducer(settings, "x")
    guarded = asyncio.create_task(producer._guarded(step))
    await asyncio.sleep(0)
    step.set_result(None)
    guarded.cancel()
    with pytest.raises(asyncio.CancelledError):
        await guarded
    await producer.stop()
