"""Reads committed records of assigned partitions, from the offsets of the lake's newest manifest.

Invariant: after `start`, each partition's records come in order, each once, from the manifest's offset. Records that retention removed
before they were read, and a log that was cut or created anew, are logged and skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from analytics.lake.manifest import Manifest, Partition
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log import kafka

BATCH = 100
"""Records per read, after which the buffer's size is checked and other tasks run."""
FETCH_BYTES = MIB
"""Per partition, compressed; a larger record is still returned."""
STOP_S = 2.0

log = structlog.get_logger()


class LogReader:
    """Reads from one manifest on; after a KafkaError create a new reader."""

    def __init__(self, settings: Settings, partitions: Iterable[kafka.TopicPartition]) -> None:
        self._settings = settings
        self._partitions = sorted(partitions)
        # `_begin` handles offsets out of range, not the client. The broker waits for FETCH_BYTES, at most half a second: an answer per
        # record would cost more than its processing.
        self._consumer = kafka.consumer(
            settings, auto_offset_reset="none", max_partition_fetch_bytes=FETCH_BYTES, fetch_min_bytes=FETCH_BYTES
        )

    async def start(self, manifest: Manifest) -> None:
        """Seek to the manifest's offsets. Raises KafkaError."""
        await self._consumer.start()
        first = await self._consumer.beginning_offsets(self._partitions)
        end = await self._consumer.end_offsets(self._partitions)
        anew = await self._anew(manifest, first)
        self._consumer.assign(self._partitions)
        for source in self._partitions:
            wanted = manifest.offset(self.name(source))
            begin = first[source] if source in anew else _begin(wanted, first[source], end[source], source)
            self._consumer.seek(source, begin)

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

    async def _anew(self, manifest: Manifest, first: Mapping[kafka.TopicPartition, int]) -> set[kafka.TopicPartition]:
        """Partitions that were deleted and created again under the same name: all their records are newer than those read."""
        read = {source: time for source in self._partitions if (time := manifest.time(self.name(source))) is not None}
        newer = (
            await self._consumer.offsets_for_times({source: time + 1 for source, time in read.items()}) if read else {}
        )
        found = {source for source, at in newer.items() if at is not None and at.offset == first[source]}
        anew = {source for source in found if first[source] < (manifest.offset(self.name(source)) or 0)}
        for source in anew:
            log.warning(
                "a log was created anew; it is read from its beginning", action="analytics.log_anew", at=_at(source, 0)
            )
        return anew


def _begin(wanted: int | None, first: int, end: int, source: kafka.TopicPartition) -> int:
    """Where to begin in a partition that contains `[first, end)` and wasn't created anew."""
    if wanted is None:
        return first
    if wanted < first:
        lost = first - wanted
        log.warning("retention removed records unread", action="analytics.gap", at=_at(source, wanted), lost=lost)
        return first
    if wanted > end:
        # A machine lost records that weren't on its disk yet; all remaining records were read.
        log.warning("a log lost records that the lake has", action="analytics.log_cut", at=_at(source, wanted), end=end)
        return end
    return wanted


def _at(source: kafka.TopicPartition, offset: int) -> str:
    return f"{source.topic}[{source.partition}]@{offset}"
