"""Reads assigned partitions from where the lake's newest manifest says, committed records only.

Invariant: between two calls of `start` each partition's records come in order, each once, from the manifest's offset on. What retention
removed before it was read, and a log that was cut or made anew, are said and gone on from. What records mean is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from analytics.manifest import Manifest
from polar.settings import Settings
from topics import kafka
from topics.contract import MIB

BATCH = 100
"""Records between two looks at the bytes held, and two breaths of the loop."""
FETCH_BYTES = MIB
"""Of one partition, compressed; a larger record still comes."""
ANEW_MS = 600_000
STOP_S = 2.0

log = structlog.get_logger()


class LogReader:
    """One life of a reader, from a manifest on; after a KafkaError make another."""

    def __init__(self, settings: Settings, partitions: Iterable[kafka.TopicPartition]) -> None:
        self._settings = settings
        self._partitions = sorted(partitions)
        # A position that is out of range is for `_position` to judge, not for the client.
        self._consumer = kafka.consumer(settings, auto_offset_reset="none", max_partition_fetch_bytes=FETCH_BYTES)

    async def start(self, manifest: Manifest) -> dict[kafka.TopicPartition, int]:
        """Where reading begins, by partition. Raises KafkaError."""
        await self._consumer.start()
        first = await self._consumer.beginning_offsets(self._partitions)
        end = await self._consumer.end_offsets(self._partitions)
        begins = {each: await self._position(each, manifest, first[each], end[each]) for each in self._partitions}
        self._consumer.assign(self._partitions)
        for partition, offset in begins.items():
            self._consumer.seek(partition, offset)
        return begins

    async def read(self, timeout_ms: int) -> list[kafka.Record]:
        """The next records, none after `timeout_ms`. Raises KafkaError."""
        found = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=BATCH)
        return [record for records in found.values() for record in records]

    async def positions(self) -> dict[kafka.TopicPartition, int]:
        """The next offset of each partition, past the markers of transactions."""
        return {partition: await self._consumer.position(partition) for partition in self._partitions}

    async def stop(self) -> None:
        """End reading; never hangs."""
        await kafka.stop(self._consumer, STOP_S)

    async def _position(self, source: kafka.TopicPartition, manifest: Manifest, first: int, end: int) -> int:
        """Where to begin in a partition that holds `[first, end)`."""
        wanted = manifest.offset(short_name(self._settings, source.topic), source.partition)
        if wanted is None:
            return first
        at = f"{source.topic}[{source.partition}]@{wanted}"
        if wanted < first:
            log.warning(
                "retention removed records that the lake hasn't", action="analytics.gap", at=at, lost=first - wanted
            )
            return first
        if wanted <= end:
            return wanted
        # Made anew, all of it is new; cut, as where a machine lost what wasn't on its disk, all that is left was read.
        found = (await self._consumer.offsets_for_times({source: max(manifest.committed_at - ANEW_MS, 0)}))[source]
        begin = first if found is not None and found.offset == first else end
        log.warning(
            "the log ends before what the lake has of it", action="analytics.log_cut", at=at, end=end, begin=begin
        )
        return begin


def short_name(settings: Settings, topic: str) -> str:
    """A topic's name without the namespace, as manifests have it."""
    return topic.removeprefix(f"{settings.namespace}.")
