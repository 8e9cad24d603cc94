"""Reads committed records of assigned partitions, from the offsets of the lake's newest manifest.

Invariant: after `start`, each partition's records come in order, each once, from the manifest's offset. Records that retention removed
before they were read are logged and skipped. A log that was created anew, or restored from an older copy, is read on after the last
record that it shares with the lake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from analytics.lake.manifest import Lake, Manifest, Partition
from analytics.lake.written import written
from topics import workers
from topics.contract import catalogue
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.last_read import replaced
from topics.log.owner import OwnershipLostError, read_back

BATCH = 100
"""Records per read, after which the buffer's size is checked and other tasks run."""
FETCH_BYTES = MIB
"""Per partition, compressed; a larger record is still returned."""
COMPACTED = frozenset(topic.name for topic in catalogue.FIXED if topic.retention_ms is None)
"""Names of topics without the namespace."""
STOP_S = 2.0
ANSWER_S = 10.0
"""Limit for a broker's answer about its cluster."""

log = structlog.get_logger()


async def cluster_id(settings: Settings) -> str:
    """The id of the Kafka cluster. Raises KafkaError, and TimeoutError."""
    client = kafka.admin(settings)
    try:
        async with asyncio.timeout(ANSWER_S):
            await client.start()
            return str((await client.describe_cluster())["cluster_id"])
    finally:
        await client.close()


class LogReader:
    """Reads from one manifest on; after a KafkaError create a new reader."""

    def __init__(self, settings: Settings, lake: Lake, partitions: Iterable[kafka.TopicPartition]) -> None:
        self._settings = settings
        self._lake = lake
        self._partitions = sorted(partitions)
        # `_begin` handles offsets out of range, not the client. The broker waits for FETCH_BYTES, at most half a second: an answer per
        # record would cost more than its processing.
        self._consumer = kafka.consumer(
            settings, auto_offset_reset="none", max_partition_fetch_bytes=FETCH_BYTES, fetch_min_bytes=FETCH_BYTES
        )
        self.cluster = ""
        """Id of the Kafka cluster, from `start` on."""

    async def start(self, manifest: Manifest) -> None:
        """Seek to the manifest's offsets. Raises KafkaError, TimeoutError, and OtherClusterError."""
        self.cluster = await cluster_id(self._settings)
        self._lake.require_cluster(manifest, self.cluster)
        await self._consumer.start()
        first = await self._consumer.beginning_offsets(self._partitions)
        end = await self._consumer.end_offsets(self._partitions)
        self._consumer.assign(self._partitions)
        last = {source: read for source in self._partitions if (read := manifest.last_read(self.name(source)))}
        compacted = [source for source in self._partitions if self.name(source)[0] in COMPACTED]
        others = await replaced(self._consumer, last, first, end, compacted)
        begins = {source: await self._shared_end(source) for source in others}
        for source in self._partitions:
            wanted = begins.get(source, manifest.offset(self.name(source)))
            if self.name(source)[0] == workers.TOPIC.name and wanted is not None:
                # Heartbeats are kept for an hour, and the lake has a sample of them: a gap is no loss.
                wanted = max(wanted, first[source])
            self._consumer.seek(source, _begin(wanted, first[source], end[source], source))

    async def read(self, timeout_ms: int) -> list[kafka.Record]:
        """The next records; none after `timeout_ms`. Raises KafkaError."""
        found = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=BATCH)
        return [record for records in found.values() for record in records]

    async def positions(self) -> dict[kafka.TopicPartition, int]:
        """The next offset of each partition, after transaction markers."""
        return {partition: await self._consumer.position(partition) for partition in self._partitions}

    async def stop(self) -> None:
        await kafka.stop(self._consumer, STOP_S)

    def name(self, source: kafka.TopicPartition) -> Partition:
        """A partition as manifests name it, without the namespace."""
        return source.topic.removeprefix(f"{self._settings.namespace}."), source.partition

    async def _shared_end(self, source: kafka.TopicPartition) -> int | None:
        """The offset after the last record that is on the log and in the lake; None: no record is."""
        known = await asyncio.to_thread(written, self._lake, self.name(source))
        shared = None
        try:
            # All of it, since the log's records without rows don't show where the copy ends.
            async for record in read_back(self._settings, source.topic, source.partition):
                if (record.offset, record.timestamp) in known:
                    shared = record.offset + 1
        except OwnershipLostError as error:
            raise TimeoutError(str(error)) from None
        log.warning(
            "a log was created anew or restored from an older copy; reading goes on after the last record that the lake has",
            action="analytics.log_replaced",
            at=_at(source, shared or 0),
        )
        return shared


def _begin(wanted: int | None, first: int, end: int, source: kafka.TopicPartition) -> int:
    """Where to begin in a partition that contains `[first, end)`."""
    if wanted is None:
        return first
    if wanted < first:
        lost = first - wanted
        log.warning("retention removed records unread", action="analytics.gap", at=_at(source, wanted), lost=lost)
        return first
    if wanted > end:
        # Its last record was read; transaction markers after it were lost.
        log.warning("a log lost records that the lake has", action="analytics.log_cut", at=_at(source, wanted), end=end)
        return end
    return wanted


def _at(source: kafka.TopicPartition, offset: int) -> str:
    return f"{source.topic}[{source.partition}]@{offset}"
