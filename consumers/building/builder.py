"""The builder: turns a session's calls into its trajectory when the session's `Build` comes; the only writer of trajectories.

Group `<namespace>.builder` on `polar.completions`. One transaction holds Trajectory or GroupFinished records, the `Emitted` record for
each, the facts for the coordinator, the webhooks that a `callback_url` is owed, and the group's offset. That offset is the oldest
open session's, where the next owner starts to read. Open sessions are a fold over the log: after a crash they are read again, and
nothing is emitted twice.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

import structlog

from consumers.building.counters import BuilderCounters
from consumers.building.open_sessions import OpenSession, OpenSessions
from consumers.building.outcome import encoded, outcome
from consumers.building.running import Builds
from consumers.metrics import Metrics
from topics import completions, events, trajectories, webhooks
from topics.completions import CloseGroup, Emitted
from topics.contract.codec import DecodeError, UnknownRecord, encode
from topics.contract.topic import MIB, Topic
from topics.environment.settings import Settings
from topics.events import GroupEmitted, TrajectoryEmitted
from topics.log import admin, kafka
from topics.log.heartbeat import HeartbeatSender, new_worker_id
from topics.log.owner import STOP_DEADLINE_S, FencedProducer, PartitionOwner, Write, read_back
from topics.log.partition import misplaced
from topics.log.producer import LogProducer, dead_letter
from topics.types.completion import Completion
from topics.types.trajectory import GroupFinished, Trajectory
from topics.waiting.first_done import first_done
from topics.webhooks import Owed

GROUP = "builder"
FETCH_MS = 500
"""Longest wait for records; a finished build ends the wait."""
GAP_S = 0.05
"""Between two fetches: records that come meanwhile share a fetch and a transaction. Nobody needs a trajectory sooner."""
FETCH_RECORDS = 500
"""Records of one fetch, and how far the committed offset may lag behind."""
TRANSACTION_BYTES = 8 * MIB
"""Protocol 3; the trajectory that exceeds the limit is the transaction's last."""
MEMORY_LIMIT = 64 * MIB
"""Bodies of calls that a partition keeps in memory. Calls beyond that are read again at their `Build` (protocol 26)."""

log = structlog.get_logger()


async def run_builder(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Build until `stop`. Any number of these share the partitions."""
    counters = BuilderCounters()
    producer = LogProducer(settings)
    await producer.start()
    worker_id = new_worker_id("builder")
    heart = HeartbeatSender(settings, lambda: HeartbeatSender.heartbeat(worker_id, GROUP, leaving=stop.is_set()))
    heart.start()
    try:
        owner = PartitionOwner(
            settings,
            GROUP,
            completions.TOPIC,
            lambda p, fenced: PartitionBuilder(settings, p, fenced, producer, counters).run(),
            writes=(completions.TOPIC, trajectories.TOPIC, trajectories.EVAL, events.TOPIC, webhooks.TOPIC),
        )
        counters.register(metrics or Metrics(), heart, settings, lambda: len(owner.partitions))
        await owner.run(stop)
    finally:
        heart.stop()
        await producer.stop()


class PartitionBuilder:
    """Owns one partition until it is cancelled or fenced."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        fenced: FencedProducer,
        producer: LogProducer,
        counters: BuilderCounters,
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._fenced = fenced
        self._producer = producer
        self._topic = completions.TOPIC.full_name(settings.namespace)
        self._source = kafka.TopicPartition(self._topic, partition)
        self._counters = counters
        self._sessions = OpenSessions(MEMORY_LIMIT, counters.ignored)
        self._builds = Builds(self._build)
        self._partitions = 0
        self._committed = 0
        self._known = {trajectories.TOPIC.name, trajectories.EVAL.name}
        """Topics that exist. After a transaction that failed, a new owner checks again."""

    async def run(self) -> None:
        await self._recover()
        consumer = kafka.consumer(self._settings, auto_offset_reset="none")
        fetch: asyncio.Task[dict[kafka.TopicPartition, list[kafka.Record]]] | None = None
        try:
            await consumer.start()
            consumer.assign([self._source])
            consumer.seek(self._source, self._sessions.position)
            while True:
                await asyncio.sleep(GAP_S)
                self._builds.keep(self._sessions.due())
                fetch = fetch or asyncio.create_task(
                    consumer.getmany(timeout_ms=FETCH_MS, max_records=FETCH_RECORDS),
                    name=f"builder.fetch.{self._partition}",
                )
                await first_done(fetch, *self._builds.tasks)
                if fetch.done():
                    for record in fetch.result().get(self._source, ()):
                        await self._take(record)
                    self._counters.read_to[self._source] = await consumer.position(self._source)
                    fetch = None
                await self._emit()
        finally:
            if fetch is not None:
                fetch.cancel()
            self._counters.read_to.pop(self._source, None)
            self._builds.cancel()
            await kafka.stop(consumer, STOP_DEADLINE_S)

    async def _recover(self) -> None:
        """Read from the committed offset to the high watermark; only then is it known what was emitted (protocol 24)."""
        self._partitions = await admin.partition_count(self._settings, self._topic)
        async with kafka.started(kafka.consumer(self._settings, group=GROUP), STOP_DEADLINE_S) as consumer:
            committed = await consumer.committed(self._source)
            first = (await consumer.beginning_offsets([self._source]))[self._source]
            end = (await consumer.end_offsets([self._source]))[self._source]
        self._sessions.has_gap = not first <= (committed or 0) <= end
        # A truncated log ends before the committed offset, and nothing shows where new records begin: read all of it.
        self._committed = self._sessions.position = first if self._sessions.has_gap else committed or 0
        async for record in read_back(self._settings, self._topic, self._partition, self._sessions.position):
            await self._take(record)
        log.info(
            "partition owned",
            action="builder.owned",
            partition=self._partition,
            position=self._sessions.position,
            due=len(self._sessions.due()),
        )

    async def _take(self, record: kafka.Record) -> None:
        # Also for a record that is passed over below.
        self._sessions.position = record.offset + 1
        try:
            decoded = completions.CODEC.decode(record.value or b"")
        except DecodeError as error:
            await self._reject(record, str(error))
            return
        if isinstance(decoded, UnknownRecord):
            self._counters.ignored[f"unknown_{decoded.type}"] += 1
            return
        flaw = completions.flaw(decoded) or misplaced(completions.task_of(decoded), self._partition, self._partitions)
        if flaw is not None:
            await self._reject(record, flaw)
            return
        if isinstance(decoded, Completion):
            self._counters.sampled(decoded)
        self._sessions.take(decoded, record.offset, len(record.value or b""))

    async def _reject(self, record: kafka.Record, reason: str) -> None:
        log.warning("dead letter", action="builder.dead_letter", partition=self._partition, offset=record.offset)
        await dead_letter(self._producer, self._settings, record, reason=reason, process="builder")

    async def _build(self, session: OpenSession) -> Trajectory:
        began = time.monotonic()
        try:
            return await outcome(session, self._settings, self._partition)
        finally:
            self._counters.built += 1
            self._counters.build_s += time.monotonic() - began

    async def _emit(self) -> None:
        """1. Write finished trajectories, ends of groups and their facts. 2. Write the oldest open session's offset. 3. Commit."""
        self._builds.keep(self._sessions.due())  # the last records may have ended or reopened sessions
        built = self._builds.finished()
        groups = self._sessions.due_groups()
        if not built and not groups and self._sessions.oldest() < self._committed + FETCH_RECORDS:
            return
        outputs = {session.build.output for session, _ in built if session.build is not None}
        needed = [trajectories.topic(output) for output in outputs | {group.output for group in groups}]
        await self._ensure(needed + [webhooks.TOPIC] * any(group.callback_url for group in groups))
        writes = [write for group in groups for write in self._group_writes(group)]
        written: list[Trajectory] = []
        for session, trajectory in built:
            if sum(len(write.value or b"") for write in writes) > TRANSACTION_BYTES:
                break  # the next transaction follows at once
            of_session, stored = self._session_writes(session, trajectory)
            writes += of_session
            written.append(stored)
        await self._fenced.begin()
        await self._fenced.write(writes)
        for trajectory in written:
            self._sessions.emitted(trajectory.session_id, "")
        for group in groups:
            self._sessions.emitted(None, group.task_id)
        self._committed = self._sessions.oldest()
        await self._fenced.commit_offset(f"{self._settings.namespace}.{GROUP}", self._source, self._committed)
        await self._fenced.commit()
        self._counters.committed(written, len(groups))

    async def _ensure(self, topics: Sequence[Topic]) -> None:
        """Create missing topics (deleted, or new to this cluster): a missing topic would hold up the whole partition."""
        missing = {topic.name: topic for topic in topics if topic.name not in self._known}
        if missing:
            await admin.apply(self._settings, missing.values(), embedded=self._settings.replication == 1)
            self._known |= missing.keys()

    def _session_writes(self, session: OpenSession, trajectory: Trajectory) -> tuple[list[Write], Trajectory]:
        """The records of a finished session, and the trajectory among them."""
        session_id, build = session.opened.session_id, session.build
        assert build is not None, "only due sessions are built"
        topic = trajectories.topic(build.output)
        trajectory, value = encoded(trajectory, build, topic)
        stats = trajectory.stats
        fact = TrajectoryEmitted(
            uuid.uuid4().hex,
            session_id,
            build.attempt,
            stats.traces,
            stats.trainable_tokens,
            stats.calls,
            trajectory.status,
            trajectory.error,
            trajectory.reward,
        )
        emitted = Emitted(build.task_id, session_id)
        writes = [self._write(topic, session_id, value), *self._marks(session_id, emitted, fact)]
        return writes, trajectory

    def _group_writes(self, group: CloseGroup) -> list[Write]:
        ids = [f"{group.task_id}.{index}" for index in range(group.num_samples)]
        finished = GroupFinished(group.task_id, group.num_samples, ids, group.rewards, group.statuses, run=group.run)
        fact = GroupEmitted(uuid.uuid4().hex, group.task_id)
        writes = [
            self._write(trajectories.topic(group.output), group.task_id, encode(finished)),
            *self._marks(group.task_id, Emitted(group.task_id), fact),
        ]
        if group.callback_url is not None:
            ended_ms = int(time.time() * 1000)
            owed = Owed(group.task_id, group.callback_url, ended_ms, group.rewards, group.statuses, group.output)
            writes.append(self._write(webhooks.TOPIC, group.task_id, encode(owed)))
        return writes

    def _marks(self, key: str, emitted: Emitted, fact: TrajectoryEmitted | GroupEmitted) -> list[Write]:
        """The records that mark an output as written: for the next owner, and for the coordinator."""
        return [
            self._write(completions.TOPIC, key, encode(emitted)),
            self._write(events.TOPIC, key, encode(fact)),
        ]

    def _write(self, topic: Topic, key: str, value: bytes) -> Write:
        return Write(topic.full_name(self._settings.namespace), self._partition, key.encode(), value)
