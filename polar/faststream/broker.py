"""FastStream's Kafka broker for Polar's topics: handlers get decoded records, at least once and in each partition's order.

- A handler gets the records that its first parameter's annotation names; all that its topic has if there is none. Other records, and
  record types that are newer than this process, are skipped and counted, unless the annotation names `UnknownRecord`. Tombstones of
  compacted topics are skipped unless it names None.
- An offset is committed after the handler returned. After an exception the record is handed to it again, until it returns: a record is
  neither lost nor overtaken by later ones of its partition. A handler that raises FastStream's `RejectMessage` gives a record up.
- Bytes that are no record are logged, counted and skipped, as `polar.trainer` does.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import structlog
from faststream import AckPolicy, BaseMiddleware
from faststream.exceptions import AckMessage, HandlerException
from faststream.kafka import KafkaBroker
from faststream.kafka.publisher.usecase import DefaultPublisher
from faststream.kafka.response import KafkaPublishCommand
from faststream.kafka.subscriber.usecase import DefaultSubscriber

from polar.faststream.named_topics import ReadableTopic, WritableTopic
from topics import tasks
from topics.contract.acl import SERVICES
from topics.contract.codec import DecodeError, UnknownRecord
from topics.environment.settings import Settings, load
from topics.log.faststream_options import broker_options, subscriber_options
from topics.log.kafka import MAX_BATCH_BYTES, Record
from topics.log.partition import partition_of_task
from topics.types.errors import InputError

log = structlog.get_logger()

H = TypeVar("H", bound=Callable[..., Any])
T = TypeVar("T")
W = TypeVar("W")

RETRY_S = 1.0
"""Pause before a record is handed again to the handler that raised."""


class Broker(KafkaBroker):
    """FastStream's broker for one Polar system. Names and topics of FastStream work beside Polar's, with FastStream's own defaults."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        """`options` are those of KafkaBroker and take precedence. Raises NotReadyError without an address or a password."""
        self.settings = settings
        self.skipped: Counter[str] = Counter()
        """Records that no handler got, by reason: `undecodable`, `unknown_TYPE`, or the name of a type that no handler names."""
        self.read: set[str] = set()
        """Full names of Polar's topics with a subscriber."""
        self.written: dict[str, WritableTopic[Any]] = {}
        """Polar's topics with a publisher, by full name."""
        middlewares = (partial(_PolarTopics, self), *options.pop("middlewares", ()))
        super().__init__(
            **broker_options(settings)
            | {
                "serializer": None,  # records are typed already, and pydantic knows no msgspec types
                "acks": "all",
                "enable_idempotence": True,
                "compression_type": "zstd",
                "max_batch_size": MAX_BATCH_BYTES,
                "max_request_size": tasks.TOPIC.max_bytes,
                # A login that may only read can't start a producer.
                "consumer_only": True,
            }
            | options,
            middlewares=middlewares,
        )

    @overload
    def subscriber(
        self, topic: ReadableTopic[T], *, group_id: str, auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    ) -> Subscriber[T]: ...
    @overload
    def subscriber(self, *topics: Any, **options: Any) -> Any: ...

    def subscriber(self, *topics: Any, **options: Any) -> Any:
        """A subscriber of one of Polar's topics, to decorate handlers with, or FastStream's of topics of your own.

        Processes with an equal `group_id` share the partitions; Kafka knows the group as NAMESPACE.services.GROUP_ID. A new group begins at
        the oldest record with `earliest`. Raises InputError for an empty one.
        """
        if not topics or not isinstance(topics[0], ReadableTopic):
            return super().subscriber(*topics, **options)
        return self._subscriber(*topics, **options)

    @overload  # type: ignore[override]
    def publisher(self, topic: WritableTopic[W]) -> Publisher[W]: ...
    @overload
    def publisher(self, topic: Any, **options: Any) -> Any: ...

    def publisher(self, topic: Any, **options: Any) -> Any:
        """A publisher of `tasks` or `cancellations`, or FastStream's of a topic of your own. Raises InputError for Polar's other topics."""
        if isinstance(topic, ReadableTopic) and not isinstance(topic, WritableTopic):
            name = topic.contract.name
            raise InputError(
                "topic", name, f"only {topic.contract.writers} may write it; write `tasks` or `cancellations`"
            )
        made = (
            self._publisher(topic, **options)
            if isinstance(topic, WritableTopic)
            else super().publisher(topic, **options)
        )
        # Read when the broker starts.
        self.config.broker_config.consumer_only = False
        return made

    def _subscriber(
        self, topic: ReadableTopic[T], *, group_id: str, auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    ) -> Subscriber[T]:
        name = topic.contract.full_name(self.settings.namespace)
        if not group_id:
            raise InputError("group_id", group_id, "a subscriber of Polar's topics needs a name for its group")
        options = subscriber_options(self.settings, f"{SERVICES}{group_id}") | {"auto_offset_reset": auto_offset_reset}

        async def decode(message: Any) -> T | UnknownRecord | None:
            record: Record = message.raw_message
            return None if record.value is None else topic.decode(record)

        self.read.add(name)
        subscriber = super().subscriber(
            name, **options, ack_policy=AckPolicy.NACK_ON_ERROR, no_reply=True, decoder=decode
        )
        return Subscriber(subscriber, topic, self.skipped)

    def _publisher(self, topic: WritableTopic[W]) -> Publisher[W]:
        name = topic.contract.full_name(self.settings.namespace)
        self.written[name] = topic
        return Publisher(super().publisher(name))


def broker(settings: Settings | None = None, **options: Any) -> Broker:
    """A broker of the system that `settings` name; None: the one that the `polar` command would find. `options`: KafkaBroker's."""
    return Broker(settings or load(), **options)


class Subscriber(Generic[T]):
    """Decorates handlers of one topic. Several handlers of one subscriber share its group: each record goes to the first that names it."""

    def __init__(self, subscriber: DefaultSubscriber, topic: ReadableTopic[T], skipped: Counter[str]) -> None:
        self._subscriber = subscriber
        self._topic = topic
        self._skipped = skipped
        self._handled: set[type[Any]] = set()

    def __call__(self, handler: H) -> H:
        """Register a handler. Raises InputError for an annotation that names a type which the topic doesn't have."""
        wanted = self._wanted(handler)
        self._handled |= wanted

        async def is_wanted(message: Any) -> bool:
            try:
                record = await message.decode()
            except DecodeError as error:
                raw: Record = message.raw_message
                at = f"{raw.topic}[{raw.partition}]@{raw.offset}"
                log.warning("undecodable record", action="faststream.undecodable", at=at, reason=str(error))
                raise self._skipping("undecodable") from None
            if type(record) in self._handled:
                return type(record) in wanted
            if isinstance(record, UnknownRecord):
                raise self._skipping(f"unknown_{record.type}")
            raise self._skipping("tombstone" if record is None else type(record).__name__)

        registered: Any = self._subscriber(handler, filter=is_wanted)
        return registered  # type: ignore[no-any-return] # FastStream's wrapper, which is called like the handler

    def _skipping(self, reason: str) -> AckMessage:
        """Count a record that no handler gets. The exception makes FastStream commit its offset."""
        self._skipped[reason] += 1
        return AckMessage()

    def _wanted(self, handler: Callable[..., Any]) -> set[type[Any]]:
        """The types that the first parameter's annotation names; those of the topic without one."""
        # Below FastStream's own decorators, such as a publisher's, the handler is wrapped.
        function = getattr(handler, "_declared_call", handler)
        first = next(iter(inspect.signature(function).parameters), None)
        if first is None:
            raise InputError(
                f"{function.__name__}()", "no parameter", "a handler takes the record as its first parameter"
            )
        hint = get_type_hints(function).get(first)
        if hint is None or hint is Any:
            return set(self._topic.records)
        named = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        allowed = (*self._topic.records, UnknownRecord, NoneType)
        for each in named:
            if each not in allowed:
                names = ", ".join(record.__name__ for record in self._topic.records)
                field = f"{function.__name__}({first})"
                raise InputError(
                    field, str(hint), f"{self._topic.contract.name} has records of type {names}; name some of them"
                )
        return set(named)


class Publisher(Generic[W]):
    """Writes to one topic: by `publish`, or what a decorated handler returns; None writes nothing."""

    def __init__(self, publisher: DefaultPublisher) -> None:
        self._publisher = publisher

    def __call__(self, handler: H) -> H:
        """Publish what the handler returns; its record is handed to it again if that fails."""
        decorated: Any = self._publisher(handler)
        return decorated  # type: ignore[no-any-return]

    async def publish(self, record: W) -> None:
        """Write a record and wait for Kafka's acknowledgement. Raises InputError, NotReadyError or aiokafka's KafkaError."""
        message: Any = record
        await self._publisher.publish(message)


class _PolarTopics(BaseMiddleware[KafkaPublishCommand, Any]):
    """Encodes what is written to Polar's topics, and waits before a record of theirs is handed to a failed handler again."""

    def __init__(self, broker: Broker, message: Any, /, *, context: Any) -> None:
        super().__init__(message, context=context)
        self._broker = broker

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,  # noqa: ARG002 - FastStream's signature
        exc_val: BaseException | None = None,
        exc_tb: Any = None,  # noqa: ARG002
    ) -> bool:
        failed = isinstance(exc_val, Exception) and not isinstance(exc_val, HandlerException)
        if failed and getattr(self.msg, "topic", None) in self._broker.read:
            await asyncio.sleep(RETRY_S)
        return False

    async def publish_scope(
        self, call_next: Callable[[KafkaPublishCommand], Awaitable[Any]], cmd: KafkaPublishCommand
    ) -> Any:
        topic = self._broker.written.get(cmd.destination)
        if topic is None:
            return await call_next(cmd)
        if cmd.body is None:
            return None
        if not isinstance(cmd.body, topic.record):
            raise InputError(
                topic.contract.name, repr(cmd.body), f"a publisher of this topic takes a {topic.record.__name__}"
            )
        encoded = await asyncio.to_thread(topic.encode, cmd.body, self._broker.settings)
        # FastStream 0.7 (pinned) has no other way to the number of partitions.
        producer = self._broker.config.broker_config.producer._producer.producer  # type: ignore[attr-defined]
        partitions = await producer.partitions_for(cmd.destination)
        cmd.body, cmd.key = encoded.value, encoded.key.encode()
        cmd.partition = partition_of_task(encoded.task_id, len(partitions))
        return await call_next(cmd)
