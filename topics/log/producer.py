"""The producer of all non-transactional records: each send waits for its acknowledgement (protocol 19).

Invariant: a send returns an `Ack`, or raises and is never repeated here; a record that raised `UnacknowledgedError` may still arrive.
Deadlines use our own clock. `topics/log/producer_generation.py` replaces a producer that failed a record; callers decide what to do about
a lost record (disown it, or send the fact again).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import structlog

from topics import dead_letters
from topics.contract.codec import encode
from topics.contract.topic import MIB, Topic
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.partition import partition_of_task
from topics.log.producer_generation import STOP_S, ProducerGeneration, ProducerGenerations
from topics.log.refusals import refusal
from topics.types.errors import NotReadyError

DEADLINE_S = 120.0
"""How long a call may wait for its acknowledgement (protocol 19)."""
RETRY_S = 0.2
"""Between tries to hand a record over."""
RECORD_OVERHEAD = 1024
"""Upper bound of bytes for a record's framing and ids, beside key, value and headers."""


log = structlog.get_logger()


class UnacknowledgedError(Exception):
    """No acknowledgement came in time, or the broker refused the record, which may still arrive. The message has the reason."""


class RecordTooLargeError(ValueError):
    """The record exceeds the topic's limit, and nothing was sent. Big values belong in the blob store (protocol 29)."""


@dataclass(frozen=True)
class Ack:
    """Position of an acknowledged record; offset -1 for a duplicate whose offset the broker no longer knows."""

    partition: int
    offset: int
    timestamp: int
    """Unix ms; the broker's clock on topics with LogAppendTime."""


@dataclass(frozen=True)
class _Outgoing:
    topic: str
    value: bytes
    key: bytes | None
    headers: kafka.Headers
    partition: int | None = None
    task_id: str | None = None
    """If set, it decides the partition."""

    @property
    def size(self) -> int:
        named = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.value) + len(self.key or b"") + named + RECORD_OVERHEAD


class LogProducer:
    """Sends records concurrently; bytes without an acknowledgement are bounded by `max_unacked_bytes`."""

    def __init__(self, settings: Settings, *, max_unacked_bytes: int = 64 * MIB) -> None:
        self._settings = settings
        self._limit = max_unacked_bytes
        self._unacked = 0
        self._freed = asyncio.Event()
        self._generations = ProducerGenerations(settings)
        self._stopped = False

    async def start(self, deadline_s: float = 60.0) -> None:
        """Connect, waiting for a broker. Raises NotReadyError if none answers in time, at once if the brokers refuse this client."""
        opening = self._generations.open()
        await asyncio.wait([opening], timeout=deadline_s)
        if not opening.done():
            await self.stop(0.0)
            raise NotReadyError(
                f"Kafka at {self._settings.bootstrap} doesn't answer within {deadline_s:.0f} s; is it running? {self._generations.trouble}"
            )
        opening.result()

    async def stop(self, deadline_s: float = STOP_S) -> None:
        """Give records in flight `deadline_s`, then cut them off: their sends raise UnacknowledgedError. Never hangs."""
        self._stopped = True
        await self._generations.close(deadline_s)

    async def send(
        self,
        topic: Topic,
        record: msgspec.Struct,
        *,
        key: str,
        task_id: str | None = None,
        partition: int | None = None,
        headers: kafka.Headers = (),
        deadline_s: float = DEADLINE_S,
    ) -> Ack:
        """Send a record of the contract; on a co-partitioned topic `task_id` decides the partition.

        Raises RecordTooLargeError (nothing was sent) and UnacknowledgedError (it may still arrive).
        """
        assert type(record) in topic.records, f"{type(record).__name__} is no record of {topic.name}"
        assert not topic.copartitioned or task_id is not None or partition is not None, f"{topic.name} needs a task id"
        outgoing = _Outgoing(
            topic.full_name(self._settings.namespace),
            encode(record),
            key.encode(),
            headers,
            partition,
            task_id if topic.copartitioned else None,
        )
        return await self._send(outgoing, topic.max_bytes, deadline_s)

    async def send_bytes(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: kafka.Headers = (),
        partition: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Ack:
        """Send bytes as they are to a topic's full name: tasks, dead letters. Raises as `send` does."""
        outgoing = _Outgoing(topic, value, key, headers, partition)
        return await self._send(outgoing, dead_letters.TOPIC.max_bytes, deadline_s)

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may go unacknowledged; always true for a first record."""
        return self._unacked == 0 or self._unacked + size <= self._limit

    async def room(self, size: int, deadline_s: float = DEADLINE_S) -> None:
        """Wait until `has_room`. Raises UnacknowledgedError at the deadline."""
        if self.has_room(size):
            return
        try:
            async with asyncio.timeout(deadline_s):
                while not self.has_room(size):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise UnacknowledgedError(
                f"{self._unacked} bytes wait for an acknowledgement, and no room for {size} came within {deadline_s:.0f} s"
            ) from None

    async def _send(self, outgoing: _Outgoing, max_bytes: int, deadline_s: float) -> Ack:
        size = outgoing.size
        if size > max_bytes:
            raise RecordTooLargeError(
                f"{outgoing.topic}: {size} bytes, at most {max_bytes}; big values go to the blob store"
            )
        deadline = asyncio.get_running_loop().time() + deadline_s
        await self.room(size, deadline_s)
        self._unacked += size
        try:
            generation, future = await self._hand_over(outgoing, deadline)
        except BaseException:
            self._release(size)
            raise
        generation.in_flight.add(future)
        generation.awaited.add(future)
        future.add_done_callback(lambda settled: self._settled(generation, settled, size))
        try:
            await asyncio.wait([future], timeout=deadline - asyncio.get_running_loop().time())
        finally:
            generation.awaited.discard(future)
        if not future.done():
            # Its bytes count until the generation is stopped, since aiokafka may hold them until then.
            self._generations.replace(generation)
            raise UnacknowledgedError(f"{outgoing.topic}: no acknowledgement within {deadline_s:.0f} s")
        if future.cancelled():
            raise UnacknowledgedError(f"{outgoing.topic}: the producer was stopped before the acknowledgement")
        if (error := future.exception()) is not None:
            raise UnacknowledgedError(f"{outgoing.topic}: {refusal(self._settings, error) or repr(error)}")
        position = future.result()
        return Ack(position.partition, position.offset, position.timestamp)

    async def _hand_over(
        self, outgoing: _Outgoing, deadline: float
    ) -> tuple[ProducerGeneration, asyncio.Future[kafka.RecordMetadata]]:
        """Have a generation accept the record. Nothing is sent before that, so this retries.

        Raises UnacknowledgedError, RecordTooLargeError.
        """
        why = ""
        try:
            async with asyncio.timeout_at(deadline):
                while not self._stopped:
                    opening = self._generations.open()
                    if not opening.done():
                        await asyncio.wait([opening])
                    if opening.cancelled():
                        break
                    generation = opening.result()
                    why = "no broker answers any more, or there is no such topic (`polar topics apply` makes them)"
                    try:
                        return generation, await _accept(generation.producer, outgoing)
                    except kafka.MessageSizeTooLargeError as error:
                        raise RecordTooLargeError(f"{outgoing.topic}: {error}") from None
                    except kafka.KafkaError as error:
                        if (refused := refusal(self._settings, error)) is not None and str(refused) != why:
                            log.error("refused", action="producer.refused", why=str(refused))
                        why = str(refused or repr(error))
                        if not error.retriable:
                            self._generations.replace(generation)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise UnacknowledgedError(
                f"{outgoing.topic}: not sent: {why or self._generations.trouble or 'no broker answers'}"
            ) from None
        raise UnacknowledgedError(f"{outgoing.topic}: not sent: the producer is stopped")

    def _settled(self, generation: ProducerGeneration, future: asyncio.Future[kafka.RecordMetadata], size: int) -> None:
        generation.in_flight.discard(future)
        self._release(size)
        # In this callback, so that no later record uses a generation that failed one.
        if not future.cancelled() and future.exception() is not None:
            self._generations.replace(generation)

    def _release(self, size: int) -> None:
        self._unacked -= size
        self._freed.set()


async def _accept(producer: kafka.Producer, outgoing: _Outgoing) -> asyncio.Future[kafka.RecordMetadata]:
    """Pass the record to aiokafka; return the future of its acknowledgement."""
    partition = outgoing.partition
    if partition is None and outgoing.task_id is not None:
        partition = partition_of_task(outgoing.task_id, len(await producer.partitions_for(outgoing.topic)))
    return await producer.send(
        outgoing.topic, outgoing.value, key=outgoing.key, partition=partition, headers=list(outgoing.headers)
    )


async def dead_letter(
    producer: LogProducer,
    settings: Settings,
    record: kafka.Record,
    *,
    reason: str,
    field: str | None = None,
    process: str,
) -> Ack:
    """Write a record's unchanged bytes to the dead letters, with reason, origin and its own headers. Raises as `LogProducer.send` does."""
    headers = dead_letters.headers(
        reason=reason,
        field=field,
        process=process,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        kept=record.headers,
    )
    name = dead_letters.TOPIC.full_name(settings.namespace)
    return await producer.send_bytes(name, record.value or b"", key=record.key, headers=headers)
