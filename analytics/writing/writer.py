"""The `analytics` consumer: from the log into the lake, each record of the topics of `analytics.lake.written` exactly once.

The group `<namespace>.analytics` assigns partitions; reading starts at the newest manifest's offsets, never at committed ones. A flush
writes a file for each table with rows, then commits files and offsets together as the next manifest. A writer that finds its partitions'
offsets changed by another drops its rows and starts again from the newest manifest. So after a crash only some seconds of the log are read
again. If the lake can't be written, the writer logs it, keeps its rows, reads up to `FLUSH_BYTES`, and tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Protocol

import structlog

from analytics.lake import places, rows
from analytics.lake.manifest import Lake, Partition, Writing
from analytics.lake.rows import Row
from analytics.lake.written import output_of
from analytics.writing import upkeep
from analytics.writing.flush import SupersededError, flush
from analytics.writing.heartbeat_sample import HeartbeatSample
from analytics.writing.membership import Membership
from analytics.writing.reader import LogReader, cluster_id
from analytics.writing.retries import Retries
from topics import completions, dead_letters, events, fleet, trajectories, verifications, workers
from topics.contract.codec import Codec, DecodeError, UnknownRecord
from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.heartbeat import HeartbeatSender, new_worker_id
from topics.log.lag import Lag
from topics.log.last_read import LastRead
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done

ROLE = "analytics"
FLUSH_S = 1.0
"""From reading a row to writing it. Readers are promised 5 s, of which the rest is room for busy machines."""
FLUSH_BYTES = 16 * MIB
"""Size of records in memory at which reading stops until they are written."""
OFFSETS_S = 60.0
"""Interval of commits without rows, so that records that give no rows aren't read again for ever."""
POLL_MS = 200
RESTART_S = 0.5
CODECS: dict[str, Codec[object]] = {
    events.TOPIC.name: events.CODEC,  # type: ignore[dict-item] # only read from
    completions.TOPIC.name: completions.CODEC,  # type: ignore[dict-item]
    verifications.TOPIC.name: verifications.CODEC,  # type: ignore[dict-item]
    fleet.TOPIC.name: fleet.CODEC,  # type: ignore[dict-item]
    workers.TOPIC.name: workers.CODEC,  # type: ignore[dict-item]
}
"""By topic; a trajectories topic has its own codec, and dead letters have none."""

log = structlog.get_logger()


class Metrics(Protocol):
    """The metrics that the writer registers (`consumers.metrics`, which this package must not import)."""

    def heart(self, role: str, heart: HeartbeatSender) -> None: ...
    def lag(self, role: str, lag: Lag) -> None: ...
    def skipped(self, role: str, read: Callable[[], Mapping[str, int]]) -> None: ...
    def counter(
        self, name: str, description: str, labels: Sequence[str], read: Callable[[], float | Mapping[str, float]]
    ) -> None: ...


async def run_analytics(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Write until `stop`, then flush. Any number of writers share the partitions and a lake.

    Raises NotReadyError if no Kafka is configured, Kafka refuses access, or the lake belongs to another Kafka cluster, and InputError if
    a bucket is missing or refuses the credentials. Waits for an unreachable Kafka, a folder that can't be written and a bucket whose server
    is away; once a bucket was written, also for one that refuses.
    """
    kafka.connection(settings)  # which raises here, not within a task group
    worker_id = new_worker_id(ROLE)
    heart = HeartbeatSender(settings, lambda: HeartbeatSender.heartbeat(worker_id, ROLE, leaving=stop.is_set()))
    lake = places.lake(settings)
    # Before this process counts as alive, so `polar up` ends with the error. Where this can't be decided yet, the reader decides it later.
    with suppress(kafka.KafkaError, TimeoutError, OSError):
        await asyncio.to_thread(lake.store.check)
        lake.require_cluster(await asyncio.to_thread(lake.newest), await cluster_id(settings))
    heart.start()
    membership = Membership(settings)
    left = asyncio.Event()
    try:
        with ExitStack() as marks:
            # A process that can't write must not take partitions from those that can.
            writing = await _enter(lake, marks, stop)
            if writing is None:
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(membership.run(left), name="membership")
                tasks.create_task(upkeep.run(lake, writing, left), name="upkeep")
                try:
                    writer = Writer(settings, lake, writing, membership)
                    if metrics is not None:
                        writer.register_metrics(metrics, heart)
                    await writer.run(stop)
                finally:
                    left.set()
    except ExceptionGroup as several:
        refused = several.subgroup(NotReadyError)
        raise several if refused is None else refused.exceptions[0] from None
    finally:
        heart.stop()


async def _enter(lake: Lake, marks: ExitStack, stop: asyncio.Event) -> Writing | None:
    """Register as a writer of the lake; None if `stop` came before its folder could be written."""
    retries = Retries(f"writing the lake in {lake.store.place}")
    while not stop.is_set():
        try:
            return marks.enter_context(lake.writing())
        except OSError as error:
            await first_done(stop, timeout_s=retries.failed(error))
    return None


class Buffer:
    """Rows that aren't committed yet."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.last: dict[Partition, LastRead] = {}
        """Each partition's newest record, including records without rows."""
        self._bytes = 0
        self._since: float | None = None
        """When the first row was read."""

    def add(self, made: list[tuple[str, Row]], size: int) -> None:
        """Add the rows of one record, whose size is in bytes."""
        if not made:
            return
        for table, row in made:
            self.rows.setdefault(table, []).append(row)
        self._bytes += size
        if self._since is None:
            self._since = time.monotonic()

    @property
    def is_full(self) -> bool:
        return self._bytes >= FLUSH_BYTES

    @property
    def is_due(self) -> bool:
        return self.is_full or (self._since is not None and time.monotonic() - self._since >= FLUSH_S)


class Writer:
    """Reads the partitions that the membership assigns, and commits their rows."""

    def __init__(self, settings: Settings, lake: Lake, writing: Writing, membership: Membership) -> None:
        self._settings = settings
        self._lake = lake
        self._writing = writing
        self._membership = membership
        self._retries = Retries(f"writing the lake in {lake.store.place}")
        self._partitions: frozenset[kafka.TopicPartition] = frozenset()
        self._reader: LogReader | None = None
        self._base: dict[Partition, int | None] = {}
        """The offsets that we expect in the newest manifest."""
        self._written_to: dict[kafka.TopicPartition, int] = {}
        """The offset after what the lake has of each partition."""
        self._buffer = Buffer()
        self._heartbeats = HeartbeatSample()
        self._flushed_at = time.monotonic()
        self.skipped: Counter[str] = Counter()
        """Counts of skipped records: `undecodable`, `unfit`, `unknown_<type>`."""
        self._rows = 0
        """Rows written since the start."""
        self._verified: Counter[str] = Counter()
        """Tokens that engines scored again, by engine."""
        self._drifted: Counter[str] = Counter()
        """Number of verified tokens whose difference was above the limit, by engine."""

    def register_metrics(self, metrics: Metrics, heart: HeartbeatSender) -> None:
        metrics.heart(ROLE, heart)
        metrics.lag(ROLE, Lag(self._settings, lambda: self._written_to))
        metrics.skipped(ROLE, lambda: self.skipped)
        metrics.counter("polar_lake_rows", "Rows written to the lake", (), lambda: self._rows)
        verified = "Tokens that `polar verify` scored again"
        metrics.counter("polar_verified_tokens", verified, ("engine",), lambda: self._verified)
        drifted = "Verified tokens whose logprob differed from the recorded one by more than the limit"
        metrics.counter("polar_drifted_tokens", drifted, ("engine",), lambda: self._drifted)

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop`, then flush."""
        try:
            while not stop.is_set():
                await self._guarded_turn(stop)
            with suppress(SupersededError, kafka.KafkaError, OSError):
                await self._flush()
        finally:
            await self._drop()

    async def _guarded_turn(self, stop: asyncio.Event) -> None:
        try:
            await self._turn()
        except SupersededError as lost:
            log.warning("another writer has these partitions", action="analytics.superseded", why=str(lost))
            await self._drop()
        except (kafka.KafkaError, ConnectionError, TimeoutError) as error:
            log.warning("the log can't be read", action="analytics.retry", why=repr(error))
            await self._drop()
            await asyncio.sleep(RESTART_S)
        except OSError as error:
            await first_done(stop, timeout_s=self._retries.failed(error))
            # The folders may have been removed: without a manifest everything is read again.
            with suppress(OSError):
                await asyncio.to_thread(self._lake.prepare)

    async def _turn(self) -> None:
        assigned = self._membership.assigned
        if assigned != self._partitions:
            await self._drop()
            self._partitions = assigned
        if not assigned:
            await asyncio.sleep(POLL_MS / 1000)
            return
        reader = self._reader or await self._start_over()
        if not self._buffer.is_full:
            for record in await reader.read(POLL_MS):
                self._take(reader, record)
        if self._buffer.is_due or time.monotonic() - self._flushed_at >= OFFSETS_S:
            await self._flush()

    async def _start_over(self) -> LogReader:
        """Start reading at the newest manifest."""
        newest = await asyncio.to_thread(self._lake.newest)
        reader = LogReader(self._settings, self._lake, self._partitions)
        try:
            await reader.start(newest)
        except BaseException:
            await reader.stop()
            raise
        self._base = {reader.name(each): newest.offset(reader.name(each)) for each in self._partitions}
        self._reader = reader
        self._written_to = await reader.positions()
        return reader

    async def _drop(self) -> None:
        """Drop rows that weren't committed; they are on the log."""
        self._buffer, self._heartbeats, self._partitions = Buffer(), HeartbeatSample(), frozenset()
        self._written_to = {}
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.stop()

    def _take(self, reader: LogReader, record: kafka.Record) -> None:
        source = reader.name(kafka.TopicPartition(record.topic, record.partition))
        self._buffer.last[source] = LastRead(record.offset, record.timestamp)
        topic, at = source[0], f"{record.topic}[{record.partition}]@{record.offset}"
        try:
            decoded = _decoded(topic, record)
            if isinstance(decoded, workers.Heartbeat) and not self._heartbeats.takes(decoded, record.timestamp):
                return
            made = list(rows.of_record(decoded, rows.origin(record), output_of(topic)))
        except DecodeError as error:
            self.skipped["undecodable"] += 1
            log.warning("undecodable record", action="analytics.undecodable", at=at, reason=str(error))
            return
        except Exception as error:
            # Decoded but invalid, such as a node without its parent: no record may stop the writer.
            self.skipped["unfit"] += 1
            log.warning("a record makes no rows", action="analytics.unfit", at=at, reason=repr(error))
            return
        if isinstance(decoded, UnknownRecord):
            self.skipped[f"unknown_{decoded.type}"] += 1
        self._buffer.add(made, len(record.value or b""))

    async def _flush(self) -> None:
        """1. Commit rows and offsets. 2. Drop them here. 3. Commit the group's offsets, for lag metrics."""
        if self._reader is None:
            return
        positions = await self._reader.positions()
        offsets = {self._reader.name(source): offset for source, offset in positions.items()}
        if offsets != self._base:
            buffer = self._buffer
            arguments = (self._lake, self._writing, buffer.rows, self._base, offsets, buffer.last, self._reader.cluster)
            self.skipped["unfit"] += await asyncio.to_thread(flush, *arguments)
            self._rows += sum(len(made) for made in buffer.rows.values())
            for row in buffer.rows.get("verifications", ()):
                self._verified[row["engine"]] += row["tokens"]
                self._drifted[row["engine"]] += row["over"]
            self._buffer, self._base = Buffer(), dict(offsets)
            self._retries.succeeded()
            self._written_to = positions
            await self._membership.commit(positions)
        self._flushed_at = time.monotonic()


def _decoded(topic: str, record: kafka.Record) -> object:
    """The decoded record. `topic`: its name without the namespace. Raises DecodeError."""
    if topic == dead_letters.TOPIC.name:
        return dead_letters.parse(record)
    return CODECS.get(topic, trajectories.CODEC).decode(record.value or b"")
