"""A member of the group: reads `polar.webhooks` with FastStream and hands what is owed to the courier.

Invariant: the committed offset of a partition is its oldest debt's; a successor reads from there to the high watermark, and only then
acts. So nothing is lost, and a crash costs telling again what was being told.

FastStream's subscriber is read one record after another rather than through handlers: what a handler raises is logged and passed over
there, its `ack()` commits whatever was fetched, and its concurrency acknowledges first. So the ack policy is manual, offsets are
committed here, by partition, and what goes wrong ends the process.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from faststream import AckPolicy
from faststream.kafka import KafkaBroker
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256, SASLScram512

from consumers.webhooks import GROUP
from consumers.webhooks.courier import Courier
from consumers.webhooks.debts import Debts
from consumers.webhooks.post import Post
from topics import webhooks
from topics.contract.codec import DecodeError, UnknownRecord
from topics.environment.settings import Settings
from topics.log import kafka, membership
from topics.log.producer import LogProducer, Unacknowledged, dead_letter
from topics.waiting.first_done import first_done

POLL_S = 0.1
"""For a record; then it is looked whether a partition's end is reached."""
COMMIT_EVERY_S = 2.0
COMMIT_S = 2.0
START_S = 30.0
STOP_S = 2.0
ENDING_S = 6.0
"""On a stop, for tries under way, a last commit, and leaving the group."""
NAME_THREADS = 64
"""Names are looked up in threads; with asyncio's own few, some that hang would hold up all others."""
MECHANISMS: dict[str, type[SASLPlaintext | SASLScram256 | SASLScram512]] = {
    "PLAIN": SASLPlaintext,
    "SCRAM-SHA-256": SASLScram256,
    "SCRAM-SHA-512": SASLScram512,
}

log = structlog.get_logger()


async def deliver(settings: Settings, stop: asyncio.Event, debts: Debts, tries: Counter[str]) -> None:
    """Tell endpoints until `stop`; `debts` and `tries` are kept for whoever looks. Raises NotReady without Kafka or a secret."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NAME_THREADS, thread_name_prefix="webhooks"))
    post = Post(settings)
    producer = LogProducer(settings)
    courier = Courier(settings, debts, post, producer, tries)
    try:
        await producer.start()
        running = asyncio.create_task(courier.run(stop), name="webhooks-courier")
        reading = asyncio.create_task(_read(settings, debts, courier, producer, stop), name="webhooks-reader")
        try:
            await first_done(running, reading)
            if stop.is_set():
                await asyncio.wait({running, reading}, timeout=ENDING_S)
            for over in (task for task in (running, reading) if task.done()):
                over.result()
        finally:
            running.cancel()
            reading.cancel()
            await asyncio.gather(running, reading, return_exceptions=True)
    finally:
        await asyncio.gather(producer.stop(STOP_S), post.close())


async def _read(settings: Settings, debts: Debts, courier: Courier, producer: LogProducer, stop: asyncio.Event) -> None:
    async def read() -> None:
        member = Member(settings, debts, courier.changed, producer)
        try:
            await member.run(stop)
        finally:
            debts.hold(())
            await member.stop()

    await membership.keep(settings, GROUP, read, stop)


class Member:
    """One membership's life."""

    def __init__(self, settings: Settings, debts: Debts, changed: Callable[[], None], producer: LogProducer) -> None:
        self._settings = settings
        self._debts = debts
        self._changed = changed
        self._producer = producer
        self._topic = webhooks.TOPIC.full_name(settings.namespace)
        self._broker = broker(settings)
        self._subscriber = self._broker.subscriber(
            self._topic,
            group_id=f"{settings.namespace}.{GROUP}",
            ack_policy=AckPolicy.MANUAL,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            session_timeout_ms=kafka.SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=kafka.HEARTBEAT_MS,
            parser=_parse,
            decoder=_decode,
        )
        self._committed: dict[int, int] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises KafkaError or TimeoutError where the membership is lost."""
        async with asyncio.timeout(START_S):
            await self._broker.start()
        commit_at = time.monotonic()
        while not stop.is_set():
            message: Any = await self._subscriber.get_one(timeout=POLL_S)
            self._debts.hold(held.partition for held in self._consumer.assignment())
            if message is not None:
                await self._take(message.raw_message, await message.decode())
                await asyncio.sleep(0)  # what was fetched comes without a pause, and others have work, too
            if await self._reach_ends() or (message is not None and not self._debts.unready()):
                self._changed()
            if time.monotonic() >= commit_at:
                await self._commit()
                commit_at = time.monotonic() + COMMIT_EVERY_S
        await self._commit()

    async def stop(self) -> None:
        """Leave the group; never hangs."""
        if self._subscriber.consumer is not None:
            # First: FastStream's stop waits as aiokafka's does, for ever with the broker away.
            await kafka.stop(self._consumer, STOP_S)
        try:
            async with asyncio.timeout(STOP_S):
                await self._broker.stop()
        except (kafka.KafkaError, TimeoutError) as error:
            log.info("left hanging", action="webhooks.left_hanging", why=repr(error))

    @property
    def _consumer(self) -> kafka.Consumer:
        consumer: Any = self._subscriber.consumer
        assert consumer is not None, "run() comes first"
        typed: kafka.Consumer = consumer
        return typed

    async def _take(self, record: kafka.Record, decoded: webhooks.Record | UnknownRecord | DecodeError) -> None:
        """Fold a record; one that can't be decoded is a dead letter before reading goes on."""
        known = decoded if isinstance(decoded, webhooks.Record) else None
        if isinstance(decoded, DecodeError):
            log.warning("dead letter", action="webhooks.dead_letter", partition=record.partition, offset=record.offset)
            try:
                await dead_letter(self._producer, self._settings, record, reason=str(decoded), process=GROUP)
            except Unacknowledged as error:
                raise TimeoutError(str(error)) from None
        self._debts.read(record.partition, record.offset, known, record.value or b"")

    async def _reach_ends(self) -> bool:
        """Whether a partition's log was read to its high watermark just now: a read_committed consumer's own end may lie before that."""
        reached = False
        for number in self._debts.unready():
            partition = kafka.TopicPartition(self._topic, number)
            end = self._consumer.highwater(partition)
            if end is not None and await self._consumer.position(partition) >= end:
                self._debts.ready(number)
                reached = True
        return reached

    async def _commit(self) -> None:
        """What lies before the oldest debts is over; only what changed is said."""
        low = self._debts.low_water()
        offsets = {number: offset for number, offset in low.items() if offset and self._committed.get(number) != offset}
        if not offsets:
            return
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._consumer.commit(
                    {kafka.TopicPartition(self._topic, number): offset for number, offset in offsets.items()}
                )
            self._committed |= offsets
        except (kafka.KafkaError, TimeoutError) as error:
            # A rebalance, mostly; leaving the group for it would bring on the next. Said again in a moment.
            log.info("not committed", action="webhooks.not_committed", why=repr(error))


def broker(settings: Settings) -> KafkaBroker:
    """FastStream's broker, as quiet as our own clients and reached as they are; it makes no producer and no topics."""
    return KafkaBroker(
        settings.bootstrap.split(","),
        security=security(settings),
        consumer_only=True,
        allow_auto_create_topics=False,
        logger=None,
        apply_types=False,
        graceful_timeout=STOP_S,
    )


def security(settings: Settings) -> BaseSecurity | None:
    """The settings of `kafka.connection` in FastStream's words; None: PLAINTEXT."""
    options = kafka.connection(settings)
    protocol = options["security_protocol"]
    context = options.get("ssl_context")
    if not protocol.startswith("SASL"):
        return BaseSecurity(ssl_context=context) if protocol == "SSL" else None
    return MECHANISMS[options["sasl_mechanism"]](
        options["sasl_plain_username"], options["sasl_plain_password"], ssl_context=context
    )


async def _parse(record: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
    """FastStream's own parsing, of a record without headers: ours have none, and others' may not be text, on which it raises."""
    return await parse(dataclasses.replace(record, headers=()))


async def _decode(message: Any) -> webhooks.Record | UnknownRecord | DecodeError:
    """The record, by our codec. What can't be decoded is a value: raised here, it would be gone with the record that it tells of."""
    try:
        return webhooks.CODEC.decode(message.body)
    except DecodeError as error:
        return error
