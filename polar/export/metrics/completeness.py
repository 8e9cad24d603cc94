"""Until when the lake has all records: a figure of an earlier time can't change any more.

A partition is read in order. So it is complete up to the time of its newest record in the lake, and up to now if nothing lies behind that
record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from analytics.lake.manifest import Manifest, Partition
from topics.environment.settings import Settings
from topics.log import kafka, lag
from topics.types.errors import NotReadyError

COUNTED = ("completions", "events", "fleet", "trajectories")
"""Topics whose records the figures come from, without the namespace. Named outputs are `trajectories.<name>`."""
CLOCKS_MS = 5_000
"""Records of one partition may come from hosts whose clocks differ by this much."""
ANSWER_S = 30.0
"""For Kafka's answer."""


def complete_until(settings: Settings, manifest: Manifest) -> int:
    """Unix ms. Without Kafka in the settings nothing writes, so that the lake is complete. Raises NotReadyError if Kafka doesn't answer."""
    now_ms = int(time.time() * 1000)
    if settings.kafka is None:
        return now_ms - CLOCKS_MS
    return read_until(manifest, asyncio.run(_ends(settings, manifest)), now_ms) - CLOCKS_MS


def read_until(manifest: Manifest, ends: Mapping[Partition, int], now_ms: int) -> int:
    """The time up to which the manifest has all records of partitions with these ends; 0 if it has none of one of them."""
    times = [now_ms]
    for partition, end in ends.items():
        if (manifest.offset(partition) or 0) < end:
            last = manifest.last_read(partition)
            times.append(0 if last is None else last.timestamp)
    return min(times)


def counted(manifest: Manifest) -> list[Partition]:
    """The partitions of COUNTED that the lake follows."""
    return [
        (topic, number)
        for topic, numbers in manifest.offsets.items()
        if topic.partition(".")[0] in COUNTED
        for number in numbers
    ]


async def _ends(settings: Settings, manifest: Manifest) -> dict[Partition, int]:
    """The ends of the counted partitions."""
    names = {
        kafka.TopicPartition(f"{settings.namespace}.{topic}", number): (topic, number)
        for topic, number in counted(manifest)
    }
    try:
        async with asyncio.timeout(ANSWER_S):
            found = await lag.ends(settings, names, committed=False)
    except (kafka.KafkaError, TimeoutError, ConnectionError) as error:
        raise NotReadyError(f"Kafka at {settings.kafka} doesn't say how far its topics go: {error!r}") from error
    return {names[partition]: end for partition, end in found.items()}
