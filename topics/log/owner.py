"""Fenced ownership of partitions for coordinator and builder, the only users of transactions (protocol 1–5).

A group membership assigns partitions to this process. For each, a task starts a transactional producer whose id names the partition,
which fences a paused predecessor, and runs a keeper, which reads its state and then acts. A failed transaction ends the keeper with its
memory, and a new one starts from the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from topics.contract.topic import MIB, Topic
from topics.environment.settings import Settings
from topics.log import hanging, kafka, membership
from topics.log.refusals import KafkaRefusedError, refusal
from topics.waiting.backoff import Backoff

TRANSACTION_TIMEOUT_MS = 5_000
START_S = 15.0
"""Limit for a producer's start: its coordinator may have to be replaced first."""
STEP_S = 10.0
"""Limit for one step of a transaction: twice `SILENCE_S`, for a step that meets a broker that hangs with its request and on the way to
another. The broker ends the transaction after `TRANSACTION_TIMEOUT_MS`, so a step that takes longer has mostly failed already."""
STOP_DEADLINE_S = 5.0
IN_FLIGHT_BYTES = 8 * MIB
"""Unacknowledged bytes in a transaction (protocol 3). aiokafka sends all of them in one request, and brokers disconnect over big ones."""
READ_BACK_S = 30.0
"""Limit without progress. The broker ends an abandoned transaction after 5 s and a periodic check."""
RESTART = Backoff(first_s=0.5, longest_s=2.0)
"""Between a failed transaction and the next try. A broker needs the first pause to elect a leader; with the longest, brokers that are away
for a minute aren't asked hundreds of times."""
POLL_MS = 500
WATCH_S = 30.0
"""Between two looks for hanging transactions. Kafka ends one that is merely abandoned within `TRANSACTION_TIMEOUT_MS` and 10 s."""

log = structlog.get_logger()


class OwnershipLostError(Exception):
    """A transaction failed or was fenced: the partition's producer and state in memory are void."""


class LogGapError(OwnershipLostError):
    """Retention removed the records to read, or the log was cut."""


@dataclass(frozen=True)
class Write:
    """One record of a transaction; a value of None is a tombstone."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


class FencedProducer:
    """The transactional producer of a partition; a new one with the same id fences this one."""

    def __init__(self, settings: Settings, transactional_id: str) -> None:
        self._producer = kafka.producer(
            settings,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_bytes=32 * MIB,
        )

    async def start(self) -> None:
        await self._guarded(self._producer.start(), START_S)

    async def stop(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        await kafka.stop(self._producer, deadline_s)

    async def commit_offset(self, group: str, source: kafka.TopicPartition, offset: int) -> None:
        """Add a group's offset to the open transaction."""
        await self._guarded(self._producer.send_offsets_to_transaction({source: offset}, group))

    async def begin(self) -> None:
        await self._guarded(self._producer.begin_transaction())

    async def write(self, writes: Sequence[Write]) -> list[int]:
        """Send records in the open transaction; return their offsets. Awaits each delivery: aiokafka would commit without failed ones."""
        offsets: list[int] = []
        pending: list[asyncio.Future[kafka.RecordMetadata]] = []
        size = 0
        try:
            async with asyncio.timeout(STEP_S):
                for write in writes:
                    sent = await self._producer.send(write.topic, write.value, key=write.key, partition=write.partition)
                    pending.append(sent)
                    size += len(write.value or b"")
                    if size > IN_FLIGHT_BYTES:
                        offsets += [metadata.offset for metadata in await asyncio.gather(*pending)]
                        pending, size = [], 0
                offsets += [metadata.offset for metadata in await asyncio.gather(*pending)]
        except Exception as error:
            raise OwnershipLostError(f"{type(error).__name__}: {error}") from error
        return offsets

    async def commit(self) -> None:
        await self._guarded(self._producer.commit_transaction())

    async def end_hanging(self, partitions: Iterable[kafka.TopicPartition], *, commits: bool) -> None:
        """End what hangs of this id's earlier transactions on these partitions, by a transaction without a record."""
        await self.begin()
        hanging.add_to_transaction(self._producer, partitions)
        await self._guarded(self._producer.commit_transaction() if commits else self._producer.abort_transaction())

    async def _guarded(self, step: Awaitable[object], deadline_s: float = STEP_S) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                await step
        except Exception as error:
            raise OwnershipLostError(f"{type(error).__name__}: {error}") from error


async def read_back(
    settings: Settings, topic: str, partition: int, start: int | None = None
) -> AsyncGenerator[kafka.Record, None]:
    """Committed records of a partition from `start` (None: its beginning) to the high watermark as of now.

    A read_committed consumer ends at the last stable offset, which an open transaction holds back (protocol 4, 24). So the end is looked up
    uncommitted, and committed reading continues to it. Raises LogGapError if the log begins after `start`, OwnershipLostError if no
    progress is made.
    """
    source = kafka.TopicPartition(topic, partition)
    async with kafka.started(kafka.consumer(settings, committed=False), STOP_DEADLINE_S) as edge:
        end = (await edge.end_offsets([source]))[source]
    # With "none", records that retention removes meanwhile are an error instead of a silent skip.
    reader = kafka.consumer(settings, auto_offset_reset="none")
    try:
        async with kafka.started(reader, STOP_DEADLINE_S):
            reader.assign([source])
            first = (await reader.beginning_offsets([source]))[source]
            if start is not None and start < first:
                raise LogGapError(f"{topic}[{partition}] begins at {first}; {start} has left it")
            reader.seek(source, first if start is None else start)
            deadline = time.monotonic() + READ_BACK_S
            while (at := await reader.position(source)) < end:
                found = await reader.getmany(timeout_ms=POLL_MS)
                for record in found.get(source, ()):
                    yield record
                if await reader.position(source) > at:
                    deadline = time.monotonic() + READ_BACK_S
                elif time.monotonic() > deadline:
                    raise OwnershipLostError(f"{topic}[{partition}] could not be read past {at} to {end}")
    except kafka.OffsetOutOfRangeError:
        raise LogGapError(f"{topic}[{partition}] was deleted or cut while it was read") from None


async def position_within_log(settings: Settings, source: kafka.TopicPartition, position: int) -> int:
    """`position`, or the log's beginning where the log begins later, or ends earlier.

    A log that ends earlier was shortened, or made again; nothing shows which, so all of it is read.
    """
    async with kafka.started(kafka.consumer(settings, committed=False), STOP_DEADLINE_S) as asker:
        first = (await asker.beginning_offsets([source]))[source]
        end = (await asker.end_offsets([source]))[source]
    found = position if first <= position <= end else first
    if found != position:
        at = f"{source.topic}[{source.partition}]@{position}"
        log.error("log gap", action="owner.log_gap", at=at, goes_on_at=found)
    return found


Keeper = Callable[[int, FencedProducer], Awaitable[None]]
"""Owns one partition until cancelled: reads its state, then acts. Raises OwnershipLostError to be started again."""


class PartitionOwner:
    """Runs one keeper for each partition of `topic` that the group assigns to this process.

    `writes`: the topics to which a keeper writes, records of its own partition's number.
    """

    def __init__(
        self, settings: Settings, group: str, topic: Topic, keep: Keeper, *, writes: Sequence[Topic] = ()
    ) -> None:
        self._settings = settings
        self._writes = writes
        self._group = group
        self._topic = topic.full_name(settings.namespace)
        self._keep = keep
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._held_back: set[int] = set()
        """Partitions whose keeper must start anew: something hangs."""

    @property
    def partitions(self) -> list[int]:
        return sorted(self._tasks)

    async def run(self, stop: asyncio.Event) -> None:
        """Own partitions until `stop`, then cancel every keeper and leave the group. A broker that is away costs time only.

        Raises KafkaRefusedError.
        """

        async def own_assigned(member: kafka.Consumer) -> None:
            """One membership. The keepers outlive it: the partition's next owner fences them."""
            while not stop.is_set():
                # The membership alone matters: records are read by the keepers, from positions of their own.
                assigned = member.assignment()
                if assigned:
                    member.pause(*assigned)
                await member.getmany(timeout_ms=POLL_MS)
                held_back, self._held_back = self._held_back, set()
                await self._reconcile({source.partition for source in member.assignment()} - held_back)
                for ended in [task for task in self._tasks.values() if task.done()]:
                    ended.result()  # refused

        watching = asyncio.create_task(self._watch(), name=f"{self._group}.watch")
        try:
            await membership.consume(self._settings, self._group, [self._topic], own_assigned, stop)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._reconcile(set())

    async def _watch(self) -> None:
        """Start a keeper anew, once, if a transaction hides records of its outputs at two looks in turn (protocol 35)."""
        looks: Counter[tuple[kafka.TopicPartition, int]] = Counter()
        while self._writes:
            await asyncio.sleep(WATCH_S)
            try:
                found = await hanging.held_back(self._settings, self._writes, self.partitions)
            except kafka.KafkaError:
                found = {}
            looks = Counter({hidden: looks[hidden] + 1 for hidden in found.items()})
            self._held_back |= {source.partition for (source, _), count in looks.items() if count == 2}

    async def _reconcile(self, assigned: set[int]) -> None:
        revoked = [self._tasks.pop(partition) for partition in list(self._tasks) if partition not in assigned]
        for task in revoked:
            task.cancel()
        await asyncio.gather(*revoked, return_exceptions=True)
        for partition in assigned - self._tasks.keys():
            name = f"{self._group}.{partition}"
            self._tasks[partition] = asyncio.create_task(self._own(partition), name=name)

    async def _start(self, partition: int, producer: FencedProducer) -> None:
        """Start the producer, and end what hangs of its predecessors' transactions as they were meant to end (protocol 35)."""
        found = self._writes and await hanging.held_back(self._settings, self._writes, [partition])
        commits = bool(found) and await hanging.is_committed(self._settings, f"{self._group}.{partition}")
        await producer.start()
        if found and (left := await hanging.held_back(self._settings, self._writes, [partition])):
            at = {f"{source.topic}[{source.partition}]": offset for source, offset in left.items()}
            log.warning("hanging transaction", action="owner.hanging", group=self._group, at=at, commits=commits)
            await producer.end_hanging(left, commits=commits)

    async def _own(self, partition: int) -> None:
        failures, at = 0, {"group": self._group, "partition": partition}
        while True:
            began, stop_s = time.monotonic(), STOP_DEADLINE_S
            producer = FencedProducer(self._settings, f"{self._group}.{partition}")
            try:
                await self._start(partition, producer)
                await self._keep(partition, producer)
            except (OwnershipLostError, kafka.KafkaError) as lost:
                if (refused := refusal(self._settings, lost.__cause__ or lost)) is not None:
                    raise refused from None
                log.warning("partition lost", action="owner.lost", **at, why=str(lost))
                # Its records are void, and the broker that they wait for may hang.
                stop_s = 0.0
            except KafkaRefusedError:
                raise
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # A library's own cancellation escaped; a keeper must not end unnoticed.
                log.warning("partition failed", action="owner.failed", **at, why="cancelled")
            except Exception as error:
                # State and producer are made anew after any error; a keeper never ends the process.
                log.exception("partition failed", action="owner.failed", **at, why=str(error))
            finally:
                await producer.stop(stop_s)
            failures = 1 if time.monotonic() - began > START_S else failures + 1
            await asyncio.sleep(RESTART.pause_s(failures))
