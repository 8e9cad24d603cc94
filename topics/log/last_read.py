"""Whether a log still is the one that a reader read: it then has the record that the reader read last.

A topic that was made again, or restored from an older copy, has other records from some offset on. An offset alone doesn't show it once
the log has grown past that offset, and timestamps alone don't while a producer's clock is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # `polar sql` reads manifests without a Kafka client
    from topics.log import kafka

POLL_MS = 200
CHECK_S = 15.0
"""Limit for reading one record of each partition."""


class LastRead(msgspec.Struct, frozen=True, array_like=True):
    """The newest record of a partition that was read."""

    offset: int
    timestamp: int
    """Unix ms."""


async def replaced(
    consumer: kafka.Consumer,
    last: Mapping[kafka.TopicPartition, LastRead],
    first: Mapping[kafka.TopicPartition, int],
    end: Mapping[kafka.TopicPartition, int],
    compacted: Collection[kafka.TopicPartition] = (),
) -> set[kafka.TopicPartition]:
    """The partitions whose log doesn't have its record. A record before `first` is passed over: retention may have removed it.

    In the partitions `compacted` another record must be at its offset: if there is none, compaction may have removed it.
    `first` and `end`: the bounds of every partition that is assigned to the consumer, which must seek afterwards. Raises KafkaError, and
    TimeoutError.
    """
    found = {source for source, read in last.items() if read.offset >= end[source]}
    pending = {source: read for source, read in last.items() if first[source] <= read.offset < end[source]}
    for source, begin in first.items():
        consumer.seek(source, pending[source].offset if source in pending else begin)
    async with asyncio.timeout(CHECK_S):
        while pending:
            batches = await consumer.getmany(*pending, timeout_ms=POLL_MS)
            for source, read in list(pending.items()):
                records = batches.get(source)
                # A position without a record: a transaction's marker, or an aborted record, is there.
                if records or await consumer.position(source) > read.offset:
                    del pending[source]
                    if source in compacted and (not records or records[0].offset > read.offset):
                        continue
                    if not records or LastRead(records[0].offset, records[0].timestamp) != read:
                        found.add(source)
    return found
