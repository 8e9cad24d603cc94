"""Reading claims' logs back: their calls, and whether they are over, for claims that another proxy may have served (protocol 18, 20).

Read uncommitted, from the claim's `Open` to the high watermark: a `Build` of the claim, or a newer `Open` of its session, ends it. Requests
for a partition that arrive before its end is looked up share one pass, so a lost proxy's sessions cost one pass a partition.
`proxy/session/claim_state.py` adds the calls to the claim.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from proxy.errors import Refusal, RefusalError
from proxy.metrics import ProxyMetrics
from topics import completions
from topics.calls.claim_records import CallStanding, ClaimRecords
from topics.completions import CallRecord
from topics.environment.keys import KeyClaims
from topics.environment.settings import Settings
from topics.log import kafka
from topics.types.completion import Completion

DEADLINE_S = 60.0
STOP_S = 2.0
AT_ONCE = 4
"""Passes at a time; a waiting pass collects further requests."""
BATCH = 500
"""Records between two chances for other tasks to run."""
RETRY_AFTER_S = 5


@dataclass(frozen=True)
class ClaimLog:
    """A claim's records between two offsets."""

    calls: Sequence[Completion]
    """In log order, whatever their outcome; of one id the first counts."""
    disowned: frozenset[str]
    """Ids of the claim's disowned calls."""
    next_offset: int
    """Offset at which reading continues."""
    is_over: bool
    """No further call of this claim counts; the rest of the log may not have been read."""

    def then(self, more: ClaimLog) -> ClaimLog:
        """This log with `more`, which was read after it."""
        return ClaimLog(
            [*self.calls, *more.calls], self.disowned | more.disowned, more.next_offset, self.is_over or more.is_over
        )


@dataclass
class _Reading:
    """The result of one request."""

    key: KeyClaims
    start: int
    records: ClaimRecords
    calls: list[Completion] = field(default_factory=list)

    def take(self, record: CallRecord) -> None:
        """Adds a record of the session, at `start` or later."""
        if self.records.take(record) is CallStanding.COUNTS and isinstance(record, Completion):
            self.calls.append(record)


class Recovery:
    """Reads claims' logs."""

    def __init__(self, settings: Settings, metrics: ProxyMetrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._readers = asyncio.Semaphore(AT_ONCE)
        self._gathering: dict[int, tuple[list[_Reading], asyncio.Task[int]]] = {}
        """By partition: the next pass, which accepts requests until it looks up the partition's end."""

    async def read_back(self, key: KeyClaims, start: int) -> ClaimLog:
        """The claim's log from an offset to the high watermark as of now or later. Raises RefusalError if it can't be read."""
        self._metrics.read_back.inc()
        reading = _Reading(key, start, ClaimRecords(key.claim_id, key.attempt))
        readings, reads = self._pass_over(key.log_partition)
        readings.append(reading)
        try:
            # Shielded: others may share the pass with a request that is cancelled.
            end = await asyncio.shield(reads)
        except (kafka.KafkaError, TimeoutError):
            raise RefusalError(
                Refusal.UNAVAILABLE, "the session can't be looked up now; try again", retry_after_s=RETRY_AFTER_S
            ) from None
        return ClaimLog(reading.calls, frozenset(reading.records.disowned), max(start, end), reading.records.is_over)

    def _pass_over(self, partition: int) -> tuple[list[_Reading], asyncio.Task[int]]:
        found = self._gathering.get(partition)
        if found is None:
            readings: list[_Reading] = []
            reads = asyncio.get_running_loop().create_task(self._read(partition, readings), name="read back")
            # Raised in the requests that still wait.
            reads.add_done_callback(lambda done: done.cancelled() or done.exception())
            found = self._gathering[partition] = readings, reads
        return found

    async def _read(self, partition: int, readings: list[_Reading]) -> int:
        """Fills the readings; returns the offset up to which they were read."""
        consumer = None
        try:
            async with asyncio.timeout(DEADLINE_S), self._readers:
                consumer = kafka.consumer(self._settings, committed=False)
                await consumer.start()
                del self._gathering[partition]
                return await self._whole(consumer, partition, readings)
        finally:
            if self._gathering.get(partition, (None,))[0] is readings:
                del self._gathering[partition]
            if consumer is not None:
                await kafka.stop(consumer, STOP_S)

    async def _whole(self, consumer: kafka.Consumer, partition: int, readings: list[_Reading]) -> int:
        source = kafka.TopicPartition(completions.TOPIC.full_name(self._settings.namespace), partition)
        consumer.assign([source])
        end = (await consumer.end_offsets([source]))[source]
        by_session: defaultdict[bytes, list[_Reading]] = defaultdict(list)
        for reading in readings:
            by_session[reading.key.session_id.encode()].append(reading)
        # If retention has removed a claim's `Open`, `getmany` starts at the earliest record.
        consumer.seek(source, min(reading.start for reading in readings))
        while await consumer.position(source) < end and not all(reading.records.is_over for reading in readings):
            for records in (await consumer.getmany(timeout_ms=1000, max_records=BATCH)).values():
                for record in records:
                    waiting = [each for each in by_session.get(record.key or b"", ()) if record.offset >= each.start]
                    if waiting and (known := completions.CODEC.known(record.value)) is not None:
                        for reading in waiting:
                            reading.take(known)
        return end
