"""The log as a rebuild reads it: where each partition begins and ends, whose a record is, and how much has been read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

from topics import completions
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import STOP_DEADLINE_S
from topics.types.session import task_id_of


async def spans(settings: Settings) -> dict[int, tuple[int, int]]:
    """First offset and end of each partition of the log."""
    topic = completions.TOPIC.full_name(settings.namespace)
    sources = [kafka.TopicPartition(topic, p) for p in range(await admin.partition_count(settings, topic))]
    async with kafka.started(kafka.consumer(settings, committed=False), STOP_DEADLINE_S) as asker:
        firsts, ends = await asker.beginning_offsets(sources), await asker.end_offsets(sources)
    return {source.partition: (firsts[source], ends[source]) for source in sources}


def task_of(record: kafka.Record) -> str:
    """Whose record it is: the key names a session or a task."""
    key = (record.key or b"").decode(errors="replace")
    return task_id_of(key) or key


class Passed:
    """How much of the log has been read, over all partitions: once to look at it, once to build."""

    def __init__(self, told: Callable[[int, int], None], spans: Mapping[int, tuple[int, int]]) -> None:
        self._told = told
        self._once = sum(end - first for first, end in spans.values())
        starts = accumulate((end - first for first, end in spans.values()), initial=0)
        self._before = {p: start - first for start, (p, (first, _)) in zip(starts, spans.items(), strict=False)}

    def looked_at(self, partition: int, offset: int) -> None:
        self._told(self._before[partition] + offset + 1, 2 * self._once)

    def built_from(self, partition: int, offset: int) -> None:
        self._told(self._once + self._before[partition] + offset + 1, 2 * self._once)
