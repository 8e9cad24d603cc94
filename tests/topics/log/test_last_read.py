"""Whether a log has the record that was read last, on a real broker."""

import asyncio

import pytest

from tests.topics.conftest import Apply
from topics import control
from topics.environment.settings import Settings
from topics.log import kafka as clients
from topics.log.last_read import LastRead, replaced
from topics.log.owner import read_back

STOP_S = 5.0


async def _write(settings: Settings, topic: str, value: bytes, *, commit: bool) -> int:
    """The offset of a record in a transaction of its own, whose marker takes the next offset."""
    async with clients.started(clients.producer(settings, transactional_id="writer"), STOP_S) as producer:
        await producer.begin_transaction()
        written = await (await producer.send(topic, value, key=b"k", partition=0))
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    return written.offset


@pytest.fixture
async def topic(settings: Settings, apply: Apply) -> str:
    await apply(control.TOPIC)
    return control.TOPIC.full_name(settings.namespace)


async def test_a_record_that_is_gone_tells_of_another_log_unless_compaction_may_have_removed_it(
    settings: Settings, topic: str
) -> None:
    source = clients.TopicPartition(topic, 0)
    kept = await _write(settings, topic, b"kept", commit=True)
    gone = await _write(settings, topic, b"gone", commit=False)  # readers don't get it, as if it had been removed
    await _write(settings, topic, b"newer", commit=True)
    [first, newest] = [record async for record in read_back(settings, topic, 0)]
    assert first.offset == kept < gone < newest.offset

    async def found(read: LastRead, compacted: bool) -> bool:
        async with clients.started(clients.consumer(settings, auto_offset_reset="none"), STOP_S) as consumer:
            consumer.assign([source])
            begin, end = await consumer.beginning_offsets([source]), await consumer.end_offsets([source])
            return bool(await replaced(consumer, {source: read}, begin, end, [source] if compacted else []))

    same, missing = LastRead(first.offset, first.timestamp), LastRead(gone, first.timestamp)
    other, beyond = LastRead(first.offset, first.timestamp - 1), LastRead(newest.offset + 9, newest.timestamp)
    answers = await asyncio.gather(
        *(found(read, compacted) for compacted in (False, True) for read in (same, missing, other, beyond))
    )
    assert answers == [False, True, True, True, False, False, True, True]
