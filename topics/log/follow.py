"""A follower reads all partitions of a topic without a consumer group, from a chosen point on, for as long as the process lives.

Processes follow `workers`, `control` and `fleet` to act on them, tables and logs to show them. Invariant: a partition's records are
passed on in order, each once; where a log lost its end, records of its last ms may come again. A broker's outage costs time only.
Unknown types and undecodable bytes are counted and skipped. Partitions added after the start aren't read.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import structlog

from topics.contract.codec import Codec, DecodeError, UnknownRecord
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin, kafka, lag
from topics.log.producer import LogProducer, UnacknowledgedError, dead_letter
from topics.log.refusals import KafkaRefusedError, refusal
from topics.types.errors import NotReadyError

START_S = 60.0
"""Limit for reading what lies on the topic at the start."""
POLL_MS = 500
BATCH = 500
"""Most records that are processed before the event loop runs other tasks."""
RETRY_S = 0.2
"""Between two tries to read while brokers are away."""
LOOK_S = 0.02
"""Between two looks at the position in `caught_up`."""
STOP_S = 5.0
LETTERS_S = 2.0
"""Limit for writing dead letters: grants and closed keys arrive by followers and must not wait longer."""

Offset = TypeVar("Offset", int, kafka.OffsetAndTime | None)

log = structlog.get_logger()


@dataclass(frozen=True)
class Since:
    """Where reading begins; if retention has removed that offset, at the earliest one left."""

    END: ClassVar[Since]
    BEGINNING: ClassVar[Since]
    seconds_ago: float
    """By record timestamps."""

    @classmethod
    def ago(cls, seconds: float) -> Since:
        return cls(seconds)


Since.END = Since(0.0)
Since.BEGINNING = Since(float("inf"))


class Follower:
    """Passes each record of a topic to `on_record`, on the event loop that started the follower."""

    def __init__(
        self,
        settings: Settings,
        topic: Topic,
        on_record: Callable[[Any, kafka.Record], None],
        *,
        since: Since,
        on_tombstone: Callable[[kafka.Record], None] | None = None,
        letters: LogProducer | None = None,
        committed: bool = False,
        gather_s: float = 0.0,
    ) -> None:
        """`on_record` gets one of `topic.records`, or bytes if the topic has none, and its envelope. It must be quick; an exception from it
        ends the follower.

        `letters`: a started producer that writes undecodable records to the dead letters; None where another reader writes them.
        `gather_s`: how long to wait after each batch for those that follow, on a topic whose records come in bursts: one fetch brings many.
        """
        self._settings = settings
        self._name = topic.full_name(settings.namespace)
        self._codec: Codec[Any] | None = Codec(*topic.records) if topic.records else None
        """None for a topic of bytes."""
        self._on_record = on_record
        self._on_tombstone = on_tombstone
        self._letters = letters
        self._since = since
        self._committed = committed
        self._gather_s = gather_s
        self._reader: kafka.Consumer | None = None
        self._partitions: list[kafka.TopicPartition] = []
        self._first: dict[kafka.TopicPartition, int] = {}
        self._passed: dict[kafka.TopicPartition, int] = {}
        self._newest_ms: dict[kafka.TopicPartition, int] = {}
        """Unix ms of the last record that was passed on; of the start before there is one."""
        self._ends_at_start: dict[kafka.TopicPartition, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.skipped: Counter[str] = Counter()
        """Skipped records by reason: `undecodable` or `unknown_<type>`."""

    async def start(self, deadline_s: float = START_S) -> None:
        """Return once everything that lay on the topic was passed on. Raises NotReadyError if no broker answers or the topic is missing."""
        trouble = f"{self._name} is longer than can be read in that time"
        try:
            async with asyncio.timeout(deadline_s):
                while self._task is None:
                    try:
                        await self._open()
                    except KafkaRefusedError:
                        raise
                    except (NotReadyError, kafka.KafkaError) as error:
                        if (refused := refusal(self._settings, error)) is not None:
                            raise refused from None
                        trouble = str(error)
                        await asyncio.sleep(RETRY_S)
                await self._passed_to(self._ends_at_start)
        except TimeoutError:
            await self.stop()
            raise NotReadyError(f"not ready after {deadline_s:.0f} s: {trouble}") from None
        except BaseException:
            await self.stop()
            raise

    @property
    def failed(self) -> asyncio.Task[None]:
        """Done, with an exception, once reading ended for good; await it beside the work that relies on this follower."""
        assert self._task is not None, "start() comes first"
        return self._task

    @property
    def progress(self) -> tuple[int, int]:
        """Offsets read, and offsets that lay on the topic at the start; (0, 0) before. Transaction markers and gaps count also."""
        ends = self._ends_at_start
        passed = sum(min(self._passed[partition], end) - self._first[partition] for partition, end in ends.items())
        return passed, sum(end - self._first[partition] for partition, end in ends.items())

    async def caught_up(self, deadline_s: float = START_S) -> None:
        """Return once all records that lie on the topic now were passed on. Raises TimeoutError, or what ended the follower."""
        assert self._reader is not None, "start() comes first"
        async with asyncio.timeout(deadline_s):
            # On connections of its own: on the reader's, the question would wait behind a fetch.
            ends = self._offsets(lambda: lag.ends(self._settings, self._partitions, committed=self._committed))
            await self._passed_to(await ends)

    async def stop(self) -> None:
        """Stop reading, within seconds. If cancelled, the connection is closed all the same."""
        task, self._task = self._task, None
        reader, self._reader = self._reader, None
        try:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        finally:
            if reader is not None:
                await kafka.stop(reader, STOP_S)

    async def _open(self) -> None:
        count = await admin.partition_count(self._settings, self._name)
        partitions = [kafka.TopicPartition(self._name, number) for number in range(count)]
        # A fetch of one partition leaves none out, so it may always wait long.
        wait: dict[str, Any] = {"fetch_max_wait_ms": kafka.IDLE_FETCH_MS} if count == 1 else {}
        # aiokafka's own reset would read the whole log again; `_return_to_log` handles a lost position.
        reader = kafka.consumer(self._settings, committed=self._committed, auto_offset_reset="none", **wait)
        try:
            await reader.start()
            reader.assign(partitions)
            await self._seek(reader, partitions)
            # Asked before the first fetch: a broker answers requests of a connection in order, and holds a fetch that finds nothing.
            ends = await self._offsets(lambda: reader.end_offsets(partitions))
        except BaseException:
            await kafka.stop(reader, STOP_S)
            raise
        self._partitions, self._reader, self._ends_at_start = partitions, reader, ends
        self._task = asyncio.create_task(self._read(reader), name=f"follow-{self._name}")

    async def _seek(self, reader: kafka.Consumer, partitions: list[kafka.TopicPartition]) -> None:
        if self._since == Since.BEGINNING:
            positions = await reader.beginning_offsets(partitions)
        else:
            positions = await reader.end_offsets(partitions)
        if self._since not in (Since.BEGINNING, Since.END):
            instant = int((time.time() - self._since.seconds_ago) * 1000)
            found = await reader.offsets_for_times(dict.fromkeys(partitions, instant))
            positions |= {partition: first.offset for partition, first in found.items() if first is not None}
        for partition, offset in positions.items():
            reader.seek(partition, offset)
        self._first = positions
        self._passed = dict(positions)
        self._newest_ms = dict.fromkeys(partitions, int(time.time() * 1000))

    async def _offsets(
        self, request: Callable[[], Awaitable[dict[kafka.TopicPartition, Offset]]]
    ) -> dict[kafka.TopicPartition, Offset]:
        """The first answer of a broker to the request."""
        while True:
            try:
                return await request()
            except kafka.KafkaError as error:
                if not kafka.is_retriable(error):
                    raise
                await asyncio.sleep(RETRY_S)

    async def _passed_to(self, ends: dict[kafka.TopicPartition, int]) -> None:
        """Return once all records before these offsets were passed on. Raises what ended the follower."""
        assert self._reader is not None, "start() comes first"
        # Polled, not signalled: a transaction's end marker moves the position but is no record.
        while not self.failed.done():
            if await self._reached(self._reader, ends):
                return
            await asyncio.sleep(LOOK_S)
        self.failed.result()

    async def _reached(self, reader: kafka.Consumer, ends: dict[kafka.TopicPartition, int]) -> bool:
        for partition, end in ends.items():
            if await reader.position(partition) < end:
                return False
        return True

    async def _read(self, reader: kafka.Consumer) -> None:
        while True:
            try:
                batches = await reader.getmany(timeout_ms=POLL_MS, max_records=BATCH)
            except kafka.OffsetOutOfRangeError as error:
                await self._return_to_log(reader, error.args[0])
                continue
            except kafka.KafkaError as error:
                if not kafka.is_retriable(error):
                    raise refusal(self._settings, error) or error from None
                log.warning("can't read", action="follow.retry", topic=self._name, reason=repr(error))
                await asyncio.sleep(RETRY_S)
                continue
            errors = [(record, self._pass_on(record)) for records in batches.values() for record in records]
            self._passed |= {partition: records[-1].offset + 1 for partition, records in batches.items()}
            # A producer's clock may be ahead of ours; records of a new topic must not seem older than its.
            now = int(time.time() * 1000)
            self._newest_ms |= {partition: min(records[-1].timestamp, now) for partition, records in batches.items()}
            # After the whole batch: `caught_up` goes by the position, which has passed the batch already.
            await self._bury([(record, error) for record, error in errors if error is not None])
            if errors:
                await asyncio.sleep(self._gather_s)

    async def _return_to_log(self, reader: kafka.Consumer, lost: dict[kafka.TopicPartition, int]) -> None:
        """Continue at the log's beginning if retention has overtaken us.

        If its end was cut off, or its topic made again, continue at the first record as new as the newest that was passed on.
        """
        firsts = await self._offsets(lambda: reader.beginning_offsets(lost))
        ends = await self._offsets(lambda: reader.end_offsets(lost))
        newer = await self._offsets(
            lambda: reader.offsets_for_times({partition: max(0, self._newest_ms[partition]) for partition in lost})
        )
        for partition, position in lost.items():
            first_newer = newer[partition]
            later = ends[partition] if first_newer is None else first_newer.offset
            offset = firsts[partition] if position < firsts[partition] else later
            at = f"{partition.topic}[{partition.partition}]@{position}"
            log.error("log gap", action="follow.log_gap", at=at, goes_on_at=offset)
            reader.seek(partition, offset)
            self._passed[partition] = offset

    def _pass_on(self, record: kafka.Record) -> DecodeError | None:
        """Pass a record on; return the error of one that can't be decoded."""
        if record.value is None:
            if self._on_tombstone is not None:
                self._on_tombstone(record)
            return None
        if self._codec is None:
            self._on_record(record.value, record)
            return None
        try:
            decoded = self._codec.decode(record.value)
        except DecodeError as error:
            self.skipped["undecodable"] += 1
            at = f"{record.topic}[{record.partition}]@{record.offset}"
            log.warning("undecodable record", action="follow.undecodable", at=at, reason=str(error))
            return error
        if isinstance(decoded, UnknownRecord):
            self.skipped[f"unknown_{decoded.type}"] += 1
        else:
            self._on_record(decoded, record)
        return None

    async def _bury(self, bad: Sequence[tuple[kafka.Record, DecodeError]]) -> None:
        """Write dead letters for undecodable records, within `LETTERS_S`."""
        letters = self._letters
        if letters is None or not bad:
            return
        writing = (
            dead_letter(letters, self._settings, record, reason=str(error), process="follower") for record, error in bad
        )
        try:
            async with asyncio.timeout(LETTERS_S):
                await asyncio.gather(*writing)
        except (TimeoutError, UnacknowledgedError) as error:
            log.error("dead letters lost", action="follow.dead_letters_lost", topic=self._name, reason=repr(error))
