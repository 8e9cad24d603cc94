"""Reads all partitions of a trajectories topic for one trainer: committed records, without a consumer group, from given offsets.

Invariant: `fill` adds each record to `ready` exactly once and in order within its partition, even if an earlier call was cancelled or
failed. Records that retention removed before they were read are an error unless `allow_gap` is set. `progress.py` interprets records.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import structlog

from topics import trajectories
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.last_read import LastRead, replaced
from topics.types.errors import InputError, NotReadyError

Start = Literal["earliest", "latest"]

FETCH_BYTES = 32 * MIB
"""Compressed size of one fetch; the next fetch waits in memory while the trainer works on the last."""
PARTITION_FETCH_BYTES = 4 * MIB
"""aiokafka's default, 1 MiB, would be two long trajectories per request."""
POLL_MS = 200
"""Also the broker's wait in a fetch; requests for offsets queue behind the fetch."""
ANSWER_S = 10.0
"""For a broker's answer to a request for offsets, which usually takes milliseconds."""
CHECK_S = 15.0
"""How often a reader that receives nothing checks that Kafka is reachable."""
RETRY_S = 0.5
"""After a failed poll; aiokafka refreshes its metadata meanwhile."""
OUT_OF_RANGE = 1
"""Kafka's error code for an offset outside the log."""
STOP_S = 5.0
OTHER_LOG = (
    "the state belongs to another topic, or the topic was created anew or restored from an older copy; without the state, "
    "start='earliest' reads all that the topic has, and start='latest' what will be added"
)

log = structlog.get_logger()


class Reader:
    """The Kafka connection of one consumer, used on the event loop that opened it."""

    def __init__(self, settings: Settings, output: str | None, *, outage_s: float, allow_gap: bool) -> None:
        self._settings = settings
        self._output = output
        self._outage_s = outage_s
        self._allow_gap = allow_gap
        self._topic = trajectories.topic(output).full_name(settings.namespace)
        self._partitions: dict[int, kafka.TopicPartition] = {}
        self._client: kafka.Consumer | None = None
        self._polling: asyncio.Task[tuple[list[kafka.Record], dict[int, int]]] | None = None
        self.ready: deque[kafka.Record] = deque()
        """Records that were read and not used yet."""
        self.positions: dict[int, int] = {}
        """By partition: the offset after `ready` and after the transaction markers that follow it."""

    async def open(self) -> None:
        """Connect. Raises NotReadyError if no Kafka answers or the topic doesn't exist."""
        count = await self._partition_count()
        self._client = kafka.consumer(
            self._settings,
            auto_offset_reset="none",
            fetch_max_wait_ms=POLL_MS,
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        )
        try:
            await self._client.start()
        except kafka.KafkaError as error:
            raise admin.unreachable(self._settings, error) from None
        self._partitions = {number: kafka.TopicPartition(self._topic, number) for number in range(count)}
        self._client.assign(list(self._partitions.values()))

    async def close(self) -> None:
        try:
            await self._stop_polling()
        finally:
            if self._client is not None:
                await kafka.stop(self._client, STOP_S)

    async def place(
        self, start: Start | Mapping[int, int], last: Mapping[int, LastRead] = MappingProxyType({})
    ) -> None:
        """Drop `ready` and read from `start`: an end of the log, or offsets by partition, where `last` were read last.

        Raises InputError for offsets that the topic never had, or if it has other records than those read; and NotReadyError if
        retention removed records (unless `allow_gap` is set) or no broker answers.
        """
        await self._stop_polling()
        self.ready.clear()
        bounds = await self._bounds()
        if bounds is None:
            raise NotReadyError(f"Kafka at {self._settings.bootstrap} doesn't answer")
        first, end = bounds
        if start == "earliest":
            offsets = first
        elif start == "latest":
            offsets = end
        elif start.keys() != first.keys():
            raise InputError("state.partitions", sorted(start), f"{self._topic} has the partitions {sorted(first)}")
        else:
            offsets = {number: self._reachable(number, offset, first, end) for number, offset in start.items()}
            await self._require_same_log(last, first, end)
        self.positions = self._seek(offsets)

    async def fill(self, timeout_s: float | None, due_ms: Callable[[], int | None] = lambda: None) -> bool:
        """Wait for records and add them to `ready`; False if none came within `timeout_s` and the end of the log was reached.

        `timeout_s` None: wait for ever. Also returns True, without records, when this host's clock has reached `due_ms()` and all records
        written before were read. Cancelling loses nothing. Raises NotReadyError if Kafka was unreachable for `outage_s`.
        """
        loop = asyncio.get_running_loop()
        began = answered = checked = loop.time()
        while not (records := await self._poll()):
            now = loop.time()
            is_idle = timeout_s is not None and now - began >= timeout_s
            due = due_ms()
            is_due = due is not None and time.time() * 1000 >= due
            if not is_idle and not is_due and now - checked < CHECK_S:
                continue
            checked = now
            if (bounds := await self._bounds()) is not None:
                answered = loop.time()
                is_at_end = all(self.positions[number] >= end for number, end in bounds[1].items())
                if is_at_end and (is_due or is_idle):
                    return is_due
            elif now - answered > self._outage_s:
                raise NotReadyError(f"Kafka at {self._settings.bootstrap} has been away for {self._outage_s:.0f} s")
        self.ready.extend(records)
        return True

    @property
    def _consumer(self) -> kafka.Consumer:
        assert self._client is not None, "open() comes first"
        return self._client

    async def _partition_count(self) -> int:
        try:
            return await admin.partition_count(self._settings, self._topic)
        except NotReadyError:
            if self._output is None:
                raise
            prefix = f"{trajectories.TOPIC.full_name(self._settings.namespace)}."
            # Raises NotReadyError itself if Kafka is unreachable.
            listed = await admin.listing(self._settings)
        there = [one.name.removeprefix(prefix) for one in listed if one.name.startswith(prefix)]
        raise NotReadyError(
            f"no output topic {self._topic}: the first task with that output_topic creates it; existing ones: {', '.join(there) or 'none'}"
        )

    async def _poll(self) -> list[kafka.Record]:
        """The next records, maybe none. If the call is cancelled, the next call returns them, and `positions` doesn't change."""
        if self._polling is None:
            self._polling = asyncio.create_task(self._records(), name=f"read-{self._topic}")
        await asyncio.wait({self._polling})
        polled, self._polling = self._polling, None
        records, self.positions = polled.result()
        return records

    async def _records(self) -> tuple[list[kafka.Record], dict[int, int]]:
        """The next records and the positions after them."""
        try:
            batches = await self._consumer.getmany(timeout_ms=POLL_MS)
        except kafka.KafkaError as error:
            return [], await self._go_back(error)
        positions = {number: await self._consumer.position(at) for number, at in self._partitions.items()}
        return [record for batch in batches.values() for record in batch], positions

    async def _go_back(self, error: kafka.KafkaError) -> dict[int, int]:
        """Seek to the end of the last successful poll: aiokafka drops gathered records if one partition's can't be read."""
        log.warning("can't read", action="trainer.retry", topic=self._topic, reason=repr(error))
        is_out_of_range = getattr(error, "errno", None) == OUT_OF_RANGE
        if not kafka.is_retriable(error) and not is_out_of_range:
            self._seek(self.positions)
            raise NotReadyError(f"{self._topic} can't be read: {error!r}") from None
        await asyncio.sleep(RETRY_S)
        bounds = await self._bounds() if is_out_of_range else None
        if bounds is None:
            return self._seek(self.positions)
        return self._seek({number: self._reachable(number, at, *bounds) for number, at in self.positions.items()})

    def _seek(self, offsets: Mapping[int, int]) -> dict[int, int]:
        for number, offset in offsets.items():
            self._consumer.seek(self._partitions[number], offset)
        return dict(offsets)

    def _reachable(self, number: int, offset: int, first: Mapping[int, int], end: Mapping[int, int]) -> int:
        """The offset, or the partition's first offset if `allow_gap` is set and earlier records are gone."""
        if offset > end[number]:
            raise InputError(
                f"state.partitions.{number}", offset, f"{self._topic}[{number}] ends at {end[number]}: {OTHER_LOG}"
            )
        if offset >= first[number]:
            return offset
        lost = f"{self._topic}[{number}]: the records from {offset} to {first[number] - 1} were removed by retention before they were read"
        if not self._allow_gap:
            raise NotReadyError(f"{lost}; allow_gap=True continues without them; a longer retention.ms prevents this")
        log.warning(lost, action="trainer.gap", partition=number)
        return first[number]

    async def _require_same_log(
        self, last: Mapping[int, LastRead], first: Mapping[int, int], end: Mapping[int, int]
    ) -> None:
        bounds = [{self._partitions[number]: offset for number, offset in each.items()} for each in (first, end)]
        read = {self._partitions[number]: record for number, record in last.items()}
        try:
            other = await replaced(self._consumer, read, *bounds)
        except (kafka.KafkaError, TimeoutError) as error:
            raise NotReadyError(f"{self._topic} can't be read: {error!r}") from None
        for source in sorted(other):
            where = f"{self._topic}[{source.partition}] has another record at {read[source].offset}"
            raise InputError(f"state.partitions.{source.partition}", read[source].offset, f"{where}: {OTHER_LOG}")

    async def _bounds(self) -> tuple[dict[int, int], dict[int, int]] | None:
        """The first offset and the committed end of each partition; None if no broker answers."""
        try:
            async with asyncio.timeout(ANSWER_S):
                first, end = await asyncio.gather(
                    self._consumer.beginning_offsets(self._partitions.values()),
                    self._consumer.end_offsets(self._partitions.values()),
                )
        except (kafka.KafkaError, TimeoutError) as error:
            log.warning("Kafka doesn't answer", action="trainer.waits", topic=self._topic, reason=repr(error))
            return None
        by_number = [{at.partition: offset for at, offset in offsets.items()} for offsets in (first, end)]
        return by_number[0], by_number[1]

    async def _stop_polling(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
