"""A lost table on a real Kafka: which partitions are rebuilt, where the new table goes on, and who waits meanwhile."""

from __future__ import annotations

import asyncio

from consumers.coordinator.table_rebuild import Report, rebuild_table
from consumers.coordinator.witness import GROUP, TableLostError, Witness
from tests.integration.conftest import expire
from topics import completions, events
from topics.environment.settings import Settings
from topics.events import CancelRequested
from topics.log import kafka
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer

PARTITION = partition_of_task("t", completions.TOPIC.embedded_partitions)
DEADLINE_S = 60.0


async def decided(settings: Settings, log: LogProducer, facts: int) -> int:
    """So many facts, and the group's offset as the coordinator that has decided them commits it."""
    for number in range(facts):
        fact = CancelRequested(f"f{number}", "t")
        end = (await log.send(events.TOPIC, fact, key="t", task_id="t")).offset + 1
    source = kafka.TopicPartition(events.TOPIC.full_name(settings.namespace), PARTITION)
    async with kafka.started(kafka.consumer(settings, group=GROUP), DEADLINE_S) as consumer:
        consumer.assign([source])
        await consumer.commit({source: end})
    return end


async def test_a_partition_whose_facts_have_left_the_log_is_rebuilt_to_their_end(
    settings: Settings, log: LogProducer
) -> None:
    end = await decided(settings, log, 3)
    await expire(settings, end, events.TOPIC)
    witness = Witness(settings, PARTITION)
    assert await witness.missed(0) == end
    assert await rebuild_table(settings) == Report(partitions=1)
    assert (await witness.newest_position()).next_offset == end
    assert await rebuild_table(settings) == Report(), "what lacks nothing is left alone"


async def test_who_owns_a_lost_table_waits_until_it_is_made_again(settings: Settings, log: LogProducer) -> None:
    end = await decided(settings, log, 3)
    witness = Witness(settings, PARTITION)
    await witness.require_whole(end, 0)
    # The table's end as its owner knew it, before the topic was made again.
    waiting = asyncio.create_task(witness.require_whole(0, 1_000))
    assert await rebuild_table(settings) == Report(partitions=1, tasks=1)
    async with asyncio.timeout(DEADLINE_S):
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(ended, TableLostError)
