"""The consumer of `polar.webhooks`: reads with FastStream and passes pending deliveries to the sender.

Invariant: the committed offset of a partition is that of its oldest pending delivery. A successor reads from there to the high watermark
before it sends. So no delivery is lost, and a crash repeats the deliveries that were in progress.

FastStream's subscriber is polled record by record, without handlers: FastStream logs and skips what a handler raises, its `ack()` commits
whatever was fetched, and its concurrency acknowledges first. Therefore the ack policy is manual, offsets are committed here per partition,
and an error ends the process.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from faststream import AckPolicy
from faststream.kafka import KafkaBroker

from consumers.webhooks import GROUP
from consumers.webhooks.client import WebhookClient
from consumers.webhooks.pending import PendingDeliveries
from consumers.webhooks.sender import Sender
from topics import webhooks
from topics.contract.codec import DecodeError, UnknownRecord
from topics.environment.settings import Settings
from topics.log import faststream_options, kafka, membership
from topics.log.producer import LogProducer, UnacknowledgedError, dead_letter
from topics.waiting.first_done import first_done

POLL_S = 0.1
"""For a record; then the end of each partition is checked."""
COMMIT_EVERY_S = 2.0
COMMIT_S = 2.0
START_S = 30.0
STOP_S = 2.0
ENDING_S = 6.0
"""For attempts in progress, a last commit, and leaving the group when the process stops."""
DNS_THREADS = 64
"""Host names are resolved in threads; with asyncio's own few, names that don't resolve would delay all others."""

log = structlog.get_logger()


async def deliver(settings: Settings, stop: asyncio.Event, pending: PendingDeliveries, results: Counter[str]) -> None:
    """Deliver until `stop`, updating `pending` and `results`. Raises NotReadyError without Kafka or a secret."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(DNS_THREADS, thread_name_prefix="webhooks"))
    client = WebhookClient(settings)
    producer = LogProducer(settings)
    sender = Sender(settings, pending, client.post, producer, results)

    async def consume() -> None:
        consumer = WebhookConsumer(settings, pending, sender.changed, producer)
        try:
            await consumer.run(stop)
        finally:
            pending.assign(())
            await consumer.stop()

    try:
        await producer.start()
        sending = asyncio.create_task(sender.run(stop), name="webhooks-sender")
        reading = asyncio.create_task(membership.keep(settings, GROUP, consume, stop), name="webhooks-consumer")
        try:
            await first_done(sending, reading)
            if stop.is_set():
                await asyncio.wait({sending, reading}, timeout=ENDING_S)
            for ended in (task for task in (sending, reading) if task.done()):
                ended.result()
        finally:
            sending.cancel()
            reading.cancel()
            await asyncio.gather(sending, reading, return_exceptions=True)
    finally:
        await asyncio.gather(producer.stop(STOP_S), client.close())


class WebhookConsumer:
    """One membership of the consumer group."""

    def __init__(
        self, settings: Settings, pending: PendingDeliveries, changed: Callable[[], None], producer: LogProducer
    ) -> None:
        self._settings = settings
        self._pending = pending
        self._changed = changed
        self._producer = producer
        self._topic = webhooks.TOPIC.full_name(settings.namespace)
        self._broker = KafkaBroker(
            **faststream_options.broker_options(settings),
            consumer_only=True,
            logger=None,
            apply_types=False,
            graceful_timeout=STOP_S,
        )
        self._subscriber = self._broker.subscriber(
            self._topic,
            **faststream_options.subscriber_options(settings, GROUP),
            ack_policy=AckPolicy.MANUAL,
            decoder=_decode,
        )
        self._committed: dict[int, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop`. Raises KafkaError or TimeoutError if the membership is lost."""
        async with asyncio.timeout(START_S):
            await self._broker.start()
        commit_at = time.monotonic()
        while not stop.is_set():
            message: Any = await self._subscriber.get_one(timeout=POLL_S)
            self._pending.assign(each.partition for each in self._consumer.assignment())
            if message is not None:
                await self._process(message.raw_message, await message.decode())
                await asyncio.sleep(0)  # fetched records come without a pause; let other tasks run
            if await self._reach_ends() or (message is not None and not self._pending.unready()):
                self._changed()
            if time.monotonic() >= commit_at:
                await self._commit()
                commit_at = time.monotonic() + COMMIT_EVERY_S
        await self._commit()

    async def stop(self) -> None:
        """Leave the group, within a few seconds."""
        if self._subscriber.consumer is not None:
            # First, because FastStream's stop waits for ever while the broker is away, as aiokafka's does.
            await kafka.stop(self._consumer, STOP_S)
        try:
            async with asyncio.timeout(STOP_S):
                await self._broker.stop()
        except (kafka.KafkaError, TimeoutError) as error:
            log.info("couldn't leave the group", action="webhooks.leave_failed", why=repr(error))

    @property
    def _consumer(self) -> kafka.Consumer:
        consumer: Any = self._subscriber.consumer
        assert consumer is not None, "run() comes first"
        typed: kafka.Consumer = consumer
        return typed

    async def _process(self, record: kafka.Record, decoded: webhooks.Record | UnknownRecord | DecodeError) -> None:
        """Fold a record. A record that can't be decoded, or makes no sense, goes to the dead letters before the next is read."""
        known = decoded if isinstance(decoded, webhooks.Record) else None
        flaw = str(decoded) if isinstance(decoded, DecodeError) else None
        if known is not None:
            flaw = webhooks.flaw(known)
        if flaw is not None:
            known = None
            log.warning("dead letter", action="webhooks.dead_letter", partition=record.partition, offset=record.offset)
            try:
                await dead_letter(self._producer, self._settings, record, reason=flaw, process=GROUP)
            except UnacknowledgedError as error:
                raise TimeoutError(str(error)) from None
        self._pending.on_read(record.partition, record.offset, known, record.value or b"")

    async def _reach_ends(self) -> bool:
        """Whether a partition was just read to its high watermark, which may lie behind the end that a read_committed consumer reports."""
        reached = False
        for number in self._pending.unready():
            partition = kafka.TopicPartition(self._topic, number)
            end = self._consumer.highwater(partition)
            if end is not None and await self._consumer.position(partition) >= end:
                self._pending.set_ready(number)
                reached = True
        return reached

    async def _commit(self) -> None:
        """Commit the changed offsets of the oldest pending deliveries."""
        try:
            async with asyncio.timeout(COMMIT_S):
                offsets = {
                    number: offset
                    for number, offset in self._pending.resume_offsets().items()
                    if self._committed.get(number) != offset and await self._has_read(number, offset)
                }
                if not offsets:
                    return
                await self._consumer.commit(
                    {kafka.TopicPartition(self._topic, number): offset for number, offset in offsets.items()}
                )
            self._committed |= offsets
        except (kafka.KafkaError, TimeoutError) as error:
            # Usually a rebalance; leaving the group would cause another. The next commit follows soon.
            log.info("not committed", action="webhooks.not_committed", why=repr(error))

    async def _has_read(self, number: int, offset: int) -> bool:
        """Whether reading is past an offset. After a rebalance it starts again before it; if a second rebalance skipped what lies between,
        settled deliveries would be repeated."""
        return bool(offset <= await self._consumer.position(kafka.TopicPartition(self._topic, number)))


async def _decode(message: Any) -> webhooks.Record | UnknownRecord | DecodeError:
    """Decode with our codec. The error is returned: raised here, FastStream would drop it together with the record."""
    try:
        return webhooks.CODEC.decode(message.body)
    except DecodeError as error:
        return error
