"""Sends that are acknowledged, refused, or given up, on a real broker."""

import asyncio
import dataclasses
import os
import socket
import time

import pytest

from tests.topics.conftest import Apply, Read
from topics import completions, control, dead_letters, events, sessions
from topics.completions import Disowned
from topics.contract.codec import encode
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.events import CancelRequested
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError, dead_letter
from topics.types.errors import NotReadyError
from topics.types.session import TaskState

CONTROL_LIMIT = control.TOPIC.max_bytes


def disowned(number: int, size: int = 10) -> Disowned:
    # Incompressible, so that sizes on the wire are what they seem.
    return Disowned(f"call{number}", "t.0", "c", os.urandom(size // 2).hex())


async def test_concurrent_sends_are_each_acknowledged_where_they_lie(
    producer: LogProducer, settings: Settings, apply: Apply, read: Read
) -> None:
    await apply(completions.TOPIC)
    sent = {f"call{n}": disowned(n) for n in range(300)}
    acks = await asyncio.gather(
        *(
            producer.send(completions.TOPIC, record, key="t.0", task_id=f"t{n % 5}")
            for n, record in enumerate(sent.values())
        )
    )
    lying = {
        (record.partition, record.offset): record.value for record in await read(f"{settings.namespace}.completions")
    }
    assert {
        (ack.partition, ack.offset): encode(record) for ack, record in zip(acks, sent.values(), strict=True)
    } == lying


async def test_a_task_lies_in_one_partition_of_all_copartitioned_topics(producer: LogProducer, apply: Apply) -> None:
    await apply(events.TOPIC, completions.TOPIC, sessions.TOPIC)
    used = set()
    for n in range(12):
        task_id = f"task-{n}"
        acks = [
            await producer.send(events.TOPIC, CancelRequested("f", task_id), key=task_id, task_id=task_id),
            await producer.send(completions.TOPIC, disowned(n), key=f"{task_id}.3", task_id=task_id),
            await producer.send(sessions.TOPIC, TaskState(task_id), key=f"task:{task_id}", task_id=task_id),
        ]
        assert len({ack.partition for ack in acks}) == 1
        used.add(acks[0].partition)
    assert len(used) > 1


async def test_a_record_too_large_is_refused_before_it_is_sent(
    producer: LogProducer, settings: Settings, apply: Apply, read: Read
) -> None:
    await apply(control.TOPIC)
    with pytest.raises(RecordTooLargeError, match=rf"control: \d+ bytes, at most {CONTROL_LIMIT}"):
        await producer.send(control.TOPIC, control.Drain("w" * CONTROL_LIMIT), key="w")
    await producer.send(control.TOPIC, control.Drain("w"), key="w")
    assert [record.key for record in await read(f"{settings.namespace}.control")] == [b"w"]


async def test_a_record_of_the_largest_size_passes(producer: LogProducer, apply: Apply) -> None:
    await apply(completions.TOPIC)
    ack = await producer.send(completions.TOPIC, disowned(1, 32 * MIB - 2048), key="t.0", task_id="t")
    assert ack.offset == 0


async def test_after_a_refused_record_the_partition_takes_others(
    producer: LogProducer, settings: Settings, apply: Apply, read: Read
) -> None:
    await apply(dataclasses.replace(control.TOPIC, max_bytes=64 * 1024))
    await producer.send(control.TOPIC, control.Drain("before"), key="w")
    with pytest.raises(UnacknowledgedError, match="MessageSizeTooLarge"):
        await producer.send(control.TOPIC, control.Drain(os.urandom(200_000).hex()), key="w")
    after = [control.Drain(f"after{n}") for n in range(20)]
    await asyncio.gather(*(producer.send(control.TOPIC, record, key="w", deadline_s=20) for record in after))
    lying = [record.value for record in await read(f"{settings.namespace}.control")]
    assert lying == [encode(record) for record in (control.Drain("before"), *after)]


async def test_a_topic_that_is_not_there_is_said(producer: LogProducer) -> None:
    with pytest.raises(UnacknowledgedError, match=r"control: not sent: .*polar topics apply"):
        await producer.send(control.TOPIC, control.Drain("w"), key="w", deadline_s=1)


async def test_a_topic_made_while_a_send_waits_gets_the_record(producer: LogProducer, apply: Apply) -> None:
    waiting = asyncio.create_task(producer.send(control.TOPIC, control.Drain("w"), key="w", deadline_s=20))
    await apply(control.TOPIC)
    ack = await waiting
    assert (ack.partition, ack.offset) == (0, 0)


async def test_unacknowledged_bytes_are_bounded(settings: Settings, apply: Apply) -> None:
    await apply(control.TOPIC)
    producer = LogProducer(settings, max_unacked_bytes=100_000)
    await producer.start()
    assert producer.has_room(200_000), "a first record always has room"
    first = asyncio.create_task(producer.send(control.TOPIC, control.Drain("w" * 90_000), key="w"))
    while producer.has_room(90_000):
        assert not first.done(), "the record's bytes were never counted"
        await asyncio.sleep(0)
    with pytest.raises(UnacknowledgedError, match=r"no room for 90000"):
        await producer.room(90_000, 0)
    acks = await asyncio.gather(
        first, *(producer.send(control.TOPIC, control.Drain("v" * 90_000), key="v") for _ in range(5))
    )
    assert [ack.offset for ack in acks] == list(range(6)), "those that waited for room went one after the other"
    await producer.room(100_000, 5)
    await producer.stop()


async def test_a_cancelled_sender_leaves_the_producer_well(settings: Settings, apply: Apply) -> None:
    await apply(control.TOPIC)
    producer = LogProducer(settings, max_unacked_bytes=10_000)
    await producer.start()
    for _ in range(20):
        sending = asyncio.create_task(producer.send(control.TOPIC, control.Drain("w" * 8_000), key="w"))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
    await producer.room(10_000, 10)
    await producer.send(control.TOPIC, control.Drain("w"), key="w", deadline_s=10)
    await producer.stop()


async def test_after_stop_nothing_is_sent(producer: LogProducer, apply: Apply) -> None:
    await apply(control.TOPIC)
    await producer.stop()
    with pytest.raises(UnacknowledgedError, match="the producer is stopped"):
        await producer.send(control.TOPIC, control.Drain("w"), key="w")


async def test_without_a_broker_start_says_so_in_time(namespace: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        producer = LogProducer(Settings(kafka=f"127.0.0.1:{unused.getsockname()[1]}", namespace=namespace))
        began = time.monotonic()
        with pytest.raises(NotReadyError, match=r"doesn't answer within 1 s.*127\.0\.0\.1"):
            await producer.start(deadline_s=1)
        assert time.monotonic() - began < 5
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_dead_letter_is_the_records_bytes_with_why_and_whence(
    producer: LogProducer, settings: Settings, apply: Apply, read: Read
) -> None:
    await apply(control.TOPIC, dead_letters.TOPIC)
    name = f"{settings.namespace}.control"
    await producer.send_bytes(name, b"\xc1 rubbish", key=b"k")
    (record,) = await read(name)
    await dead_letter(producer, settings, record, reason="not a record", field="type", process="coordinator")
    (letter,) = await read(f"{settings.namespace}.dead-letters")
    assert (letter.key, letter.value) == (b"k", b"\xc1 rubbish")
    assert dict(letter.headers) == {
        "reason": b"not a record",
        "field": b"type",
        "process": b"coordinator",
        "source-topic": name.encode(),
        "source-partition": b"0",
        "source-offset": b"0",
    }
