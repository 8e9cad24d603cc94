"""Reads a trajectories topic for one trainer: all partitions, committed records, without a group, from positions that the trainer keeps.

Invariant: what `fill` adds to `ready` is in order within a partition, nothing twice and nothing left out, however a call ended. Records
that have left the log before they were read are an error unless they may be. What records mean to a trainer is `progress.py`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import structlog

from topics import trajectories
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.types.errors import InputError, NotReady

Start = Literal["earliest", "latest"]

FETCH_BYTES = 32 * MIB
"""Compressed, of one answer of a broker; one such answer waits while the last is worked through."""
PARTITION_FETCH_BYTES = 4 * MIB
"""aiokafka's own 1 MiB is two long trajectories a request."""
POLL_MS = 200
"""Also of a fetch at the broker, which a question about offsets waits behind."""
ANSWER_S = 10.0
"""For a broker's answer to a question about offsets."""
ASK_S = 15.0
"""How often one who waits makes sure that Kafka is there at all."""
RETRY_S = 0.5
OUT_OF_RANGE = 1
"""Kafka's error code of an offset that the log doesn't have."""
STOP_S = 5.0

log = structlog.get_logger()


class Reader:
    """One consumer's connection, on the loop that opened it."""

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
        """Read, and not taken yet."""
        self.positions: dict[int, int] = {}
        """By partition: behind `ready`, and behind the ends of transactions that follow it."""

    async def open(self) -> None:
        """Connect. Raises NotReady where no Kafka answers, or the topic isn't there."""
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
            raise admin.away(self._settings, error) from None
        self._partitions = {number: kafka.TopicPartition(self._topic, number) for number in range(count)}
        self._client.assign(list(self._partitions.values()))

    async def close(self) -> None:
        """End reading; never hangs."""
        await self._stop_polling()
        if self._client is not None:
            await kafka.stop(self._client, STOP_S)

    async def place(self, start: Start | Mapping[int, int]) -> None:
        """Read from there on, whatever was read before; offsets by partition.

        Raises InputError for offsets that the topic can't have given, NotReady for records that have left the log (unless they may
        have), or where no broker answers.
        """
        await self._stop_polling()
        self.ready.clear()
        bounds = await self._bounds()
        if bounds is None:
            raise NotReady(f"Kafka at {self._settings.bootstrap} doesn't answer")
        first, end = bounds
        if start == "earliest":
            offsets = first
        elif start == "latest":
            offsets = end
        elif start.keys() != first.keys():
            raise InputError("state.partitions", sorted(start), f"{self._topic} has the partitions {sorted(first)}")
        else:
            offsets = {number: self._reachable(number, offset, first, end) for number, offset in start.items()}
        self.positions = self._seek(offsets)

    async def fill(self, timeout_s: float | None, due_ms: Callable[[], int | None] = lambda: None) -> bool:
        """Wait for records and add them to `ready`; False where Kafka says that there are no more, and none came in that time.

        None: wait for ever, as long as Kafka is there. True without records: it is `due_ms()`, of this host's clock, and all that
        was written before is read. Cancelling it loses nothing. Raises NotReady where Kafka was away for `outage_s`.
        """
        loop = asyncio.get_running_loop()
        began = answered = asked = loop.time()
        while not (records := await self._poll()):
            now = loop.time()
            is_idle = timeout_s is not None and now - began >= timeout_s
            due = due_ms()
            is_due = due is not None and time.time() * 1000 >= due
            if not is_idle and not is_due and now - asked < ASK_S:
                continue
            asked = now
            if (is_at_end := await self._is_at_end()) is not None:
                answered = loop.time()
                if is_at_end and (is_due or is_idle):
                    return is_due
            elif now - answered > self._outage_s:
                raise NotReady(f"Kafka at {self._settings.bootstrap} has been away for {self._outage_s:.0f} s")
        self.ready.extend(records)
        return True

    @property
    def _consumer(self) -> kafka.Consumer:
        assert self._client is not None, "open() comes first"
        return self._client

    async def _partition_count(self) -> int:
        try:
            return await admin.partition_count(self._settings, self._topic)
        except NotReady:
            if self._output is None:
                raise
            prefix = f"{trajectories.TOPIC.full_name(self._settings.namespace)}."
            # Raises for itself where it is Kafka that isn't there.
            listed = await admin.listing(self._settings)
        there = [one.name.removeprefix(prefix) for one in listed if one.name.startswith(prefix)]
        raise NotReady(
            f"no output topic {self._topic}: the first task with that output_topic makes it; there are: {', '.join(there) or 'none'}"
        )

    async def _poll(self) -> list[kafka.Record]:
        """The next records, maybe none. A wait that is cancelled leaves them to the next, and `positions` where they were."""
        if self._polling is None:
            self._polling = asyncio.create_task(self._records(), name=f"read-{self._topic}")
        await asyncio.wait({self._polling})
        polled, self._polling = self._polling, None
        records, self.positions = polled.result()
        return records

    async def _records(self) -> tuple[list[kafka.Record], dict[int, int]]:
        """And the positions behind them."""
        try:
            batches = await self._consumer.getmany(timeout_ms=POLL_MS)
        except kafka.KafkaError as error:
            return [], await self._go_back(error)
        positions = {number: await self._consumer.position(at) for number, at in self._partitions.items()}
        return [record for batch in batches.values() for record in batch], positions

    async def _go_back(self, error: kafka.KafkaError) -> dict[int, int]:
        """To where the last good poll ended: aiokafka drops what it has gathered when one partition's records can't be had."""
        log.warning("can't read", action="trainer.retry", topic=self._topic, reason=repr(error))
        is_out_of_range = getattr(error, "errno", None) == OUT_OF_RANGE
        if not kafka.may_pass(error) and not is_out_of_range:
            self._seek(self.positions)
            raise NotReady(f"{self._topic} can't be read: {error!r}") from None
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
        """The offset, or the first that is left where what lay before may be lost."""
        if offset > end[number]:
            reason = f"{self._topic}[{number}] ends at {end[number]}: this is another topic than the state's, or it was made anew"
            raise InputError(f"state.partitions.{number}", offset, reason)
        if offset >= first[number]:
            return offset
        lost = f"{self._topic}[{number}]: the records from {offset} to {first[number] - 1} have left the log unread"
        if not self._allow_gap:
            raise NotReady(f"{lost}; allow_gap=True goes on without them, a longer retention.ms keeps them next time")
        log.warning(lost, action="trainer.gap", partition=number)
        return first[number]

    async def _bounds(self) -> tuple[dict[int, int], dict[int, int]] | None:
        """First offset and committed end of each partition; None where no broker answers."""
        try:
            async with asyncio.timeout(ANSWER_S):
                first, end = await asyncio.gather(
                    self._consumer.beginning_offsets(self._partitions.values()),
                    self._consumer.end_offsets(self._partitions.values()),
                )
        except (kafka.KafkaError, TimeoutError) as error:
            log.warning("Kafka doesn't answer", action="trainer.waits", topic=self._topic, reason=repr(error))
            return None
        return {at.partition: offset for at, offset in first.items()}, {
            at.partition: offset for at, offset in end.items()
        }

    async def _is_at_end(self) -> bool | None:
        """Whether all that there is was polled; None where no broker answers."""
        bounds = await self._bounds()
        return None if bounds is None else all(self.positions[number] >= end for number, end in bounds[1].items())

    async def _stop_polling(self) -> None:
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
