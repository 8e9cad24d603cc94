"""The clients: what we call of aiokafka, typed, and made with the settings that the protocol asks for.

aiokafka ships no types, so it is imported here alone (its partitioner apart: `topics/log/partition.py`). `stop` ends any client within a
deadline, which aiokafka's own doesn't with the broker away (protocol 19). Retrying, replacing and deciding are left to the callers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import aiokafka
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import create_conn
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.structs import TopicPartition

from topics.contract.topic import MIB
from topics.environment.settings import Settings
from topics.types.errors import NotReady

log = structlog.get_logger()

__all__ = [
    "LOGIN_REFUSED",
    "REFUSALS",
    "Admin",
    "Consumer",
    "Headers",
    "KafkaConnectionError",
    "KafkaError",
    "MessageSizeTooLargeError",
    "OffsetAndTime",
    "OffsetOutOfRangeError",
    "Producer",
    "Record",
    "RecordMetadata",
    "TopicPartition",
    "admin",
    "connection",
    "consumer",
    "is_retriable",
    "new_topic",
    "producer",
    "started",
    "stop",
    "topic_config",
    "try_connection",
]

Headers = Sequence[tuple[str, bytes]]

SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 2_000
REQUEST_TIMEOUT_MS = 15_000
"""How long a broker that hangs, or has gone without a word, is waited for before another is asked. A group's members keep aiokafka's 40 s:
a rebalance may take as long."""
BATCH_TTL_S = 600.0
"""After which aiokafka fails a batch while no leader is known: later than any sender waits, for the senders' clocks are what counts, and a
failed batch spoils its producer."""
TRANSACTION_BACKOFF_MS = 20
"""Short, since a transaction's first batch is regularly refused once while the broker verifies the partition."""
REFUSALS: Mapping[type[KafkaError], str] = {
    TopicAuthorizationFailedError: "the topic",
    GroupAuthorizationFailedError: "the consumer group",
    TransactionalIdAuthorizationFailed: "the transactional id",
    ClusterAuthorizationFailedError: "something of the cluster",
}
"""What a user lacks an ACL for. The errors' arguments name it."""
LOGIN_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed)
PRODUCER_TASKS = (("_sender", "_sender_task"),)
CONSUMER_TASKS = (
    ("_fetcher", "_fetch_task"),
    ("_coordinator", "_coordination_task"),
    ("_coordinator", "_heartbeat_task"),
    ("_coordinator", "_commit_refresh_task"),
    ("_coordinator", "_reset_committed_task"),
)
"""Where aiokafka's clients keep their tasks: part, attribute."""
MAX_BATCH_BYTES = MIB
"""Of one partition. One request a broker is in flight, so what gathers meanwhile is what a batch can hold."""


def is_retriable(error: KafkaError) -> bool:
    """Whether the same may be asked again and answered: aiokafka doesn't count a request that no broker answered in time among these."""
    return bool(error.retriable) or isinstance(error, KafkaTimeoutError)


class Record(Protocol):
    """A record as a consumer gives it (aiokafka's ConsumerRecord)."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int:
        """Unix ms; the broker's where the topic says LogAppendTime."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None:
        """None: a tombstone."""

    @property
    def headers(self) -> Headers: ...


class RecordMetadata(Protocol):
    """Where an acknowledged record lies."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


class OffsetAndTime(Protocol):
    """The first record at or after a time."""

    @property
    def offset(self) -> int: ...


class Client(Protocol):
    """What both sorts have."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Consumer(Client, Protocol):
    """aiokafka's AIOKafkaConsumer, as far as we use it. Raises KafkaError."""

    async def topics(self) -> set[str]: ...
    def subscribe(self, topics: Sequence[str], *, listener: object | None = None) -> None: ...
    def assign(self, partitions: Sequence[TopicPartition]) -> None: ...
    def assignment(self) -> set[TopicPartition]: ...
    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]: ...
    async def position(self, partition: TopicPartition) -> int: ...
    def highwater(self, partition: TopicPartition) -> int | None: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTime | None]: ...
    async def committed(self, partition: TopicPartition) -> int | None: ...
    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...
    def paused(self) -> set[TopicPartition]: ...


class Producer(Client, Protocol):
    """aiokafka's AIOKafkaProducer, as far as we use it. Raises KafkaError."""

    async def partitions_for(self, topic: str) -> set[int]: ...
    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Returns when the record is accepted for sending; the future is its acknowledgement. Cancelled before, nothing is sent."""

    async def begin_transaction(self) -> None: ...
    async def commit_transaction(self) -> None: ...
    async def abort_transaction(self) -> None: ...
    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group_id: str) -> Awaitable[None]: ...


class Response(Protocol):
    """An answer to an admin request."""

    def to_object(self) -> dict[str, Any]: ...


class Admin(Protocol):
    """aiokafka's AIOKafkaAdminClient, as far as we use it. Raises KafkaError; what is wrong with one topic is in the response."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def describe_topics(self, topics: list[str] | None = None) -> list[dict[str, Any]]: ...
    async def create_topics(self, new_topics: Sequence[object]) -> Response: ...
    async def describe_configs(self, config_resources: Sequence[object]) -> list[Response]: ...
    async def alter_configs(self, config_resources: Sequence[object]) -> list[Response]: ...


def connection(settings: Settings) -> dict[str, Any]:
    """How any client reaches the brokers: bootstrap servers, TLS, SASL. Raises NotReady where something for that isn't there."""
    protocol = settings.kafka_security_protocol
    options: dict[str, Any] = {"bootstrap_servers": settings.bootstrap, "security_protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl_context"] = _tls(settings)
    if protocol.startswith("SASL"):
        if settings.kafka_sasl_username is None:
            raise NotReady(f"{protocol} needs a user: set POLAR_KAFKA_SASL_USERNAME")
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
        options["sasl_plain_username"] = settings.kafka_sasl_username
        options["sasl_plain_password"] = settings.sasl_password
    return options


def _tls(settings: Settings) -> ssl.SSLContext:
    """Raises NotReady for files that can't be used."""
    files = {
        "cafile": settings.kafka_ca_file,
        "certfile": settings.kafka_cert_file,
        "keyfile": settings.kafka_key_file,
    }
    said = ", ".join(
        f"POLAR_KAFKA_{name.removesuffix('file').upper()}_FILE={path}" for name, path in files.items() if path
    )
    try:
        # The empty password: for a key that has one, OpenSSL would ask on the terminal.
        made: ssl.SSLContext = create_ssl_context(
            **{name: path and str(path) for name, path in files.items()}, password=""
        )
    except (OSError, ValueError) as error:
        raise NotReady(
            f"{said} can't be used for TLS: {error}; expected PEM files, the key without a password"
        ) from None
    return made


async def try_connection(settings: Settings) -> None:
    """Make a connection to the first broker, log in and go. Raises KafkaError, OSError (ssl.SSLError among them), each as it came."""
    options = connection(settings)
    host, _, port = options.pop("bootstrap_servers").partition(",")[0].rpartition(":")
    made = await create_conn(host, int(port), **options)
    made.close()


def consumer(settings: Settings, *, group: str | None = None, committed: bool = True, **options: Any) -> Consumer:
    """A consumer that never commits by itself; `group` is namespaced here, None reads without one.

    `committed`: isolation read_committed. `options` are aiokafka's own and win. Needs a running loop.
    """
    made: Consumer = aiokafka.AIOKafkaConsumer(
        **connection(settings)
        | {
            "group_id": None if group is None else f"{settings.namespace}.{group}",
            "isolation_level": "read_committed" if committed else "read_uncommitted",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "partition_assignment_strategy": (StickyPartitionAssignor,),
        }
        | ({"request_timeout_ms": REQUEST_TIMEOUT_MS} if group is None else {})
        | options
    )
    return made


def producer(
    settings: Settings, *, transactional_id: str | None = None, max_bytes: int = 8 * MIB, **options: Any
) -> Producer:
    """A producer: acks=all, idempotent, zstd. `max_bytes` bounds a record before compression (protocol 29).

    `transactional_id` is namespaced here. `options` are aiokafka's own and win. Needs a running loop.
    """
    transactional = {
        "transactional_id": f"{settings.namespace}.{transactional_id}",
        "retry_backoff_ms": TRANSACTION_BACKOFF_MS,
    }
    made = aiokafka.AIOKafkaProducer(
        **connection(settings)
        | {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": "zstd",
            "max_request_size": max_bytes,
            "max_batch_size": min(max_bytes, MAX_BATCH_BYTES),
            "linger_ms": 0,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }
        | (transactional if transactional_id is not None else {})
        | options
    )
    # aiokafka 0.14 (pinned) has no setting of its own for it: it is the request's timeout.
    made._message_accumulator._batch_ttl = BATCH_TTL_S
    found: Producer = made
    return found


def admin(settings: Settings) -> Admin:
    """An admin client. Needs a running loop."""
    made: Admin = AIOKafkaAdminClient(**connection(settings))
    return made


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> object:
    """What `Admin.create_topics` takes."""
    made: object = NewTopic(name, partitions, replication, topic_configs=dict(config))
    return made


def topic_config(name: str, config: Mapping[str, str] | None = None) -> object:
    """What `Admin.alter_configs` takes, all settings of a topic; without `config`, what `Admin.describe_configs` takes."""
    made: object = ConfigResource(ConfigResourceType.TOPIC, name, None if config is None else dict(config))
    return made


C = TypeVar("C", bound=Client)


@asynccontextmanager
async def started(client: C, deadline_s: float) -> AsyncIterator[C]:
    """A client for the block's time; then it is stopped within `deadline_s`, also where it couldn't even be started."""
    try:
        await client.start()
        yield client
    finally:
        await stop(client, deadline_s)


async def stop(client: Client, deadline_s: float) -> bool:
    """Stop a client, started or not; True when it ended by itself in time, False when it was cut off.

    A producer's stop waits for its records to be acknowledged, for ever where the broker is away. What is cut off isn't sent
    any more, unless it is on the wire. Returns within `deadline_s` and two seconds. Cancelled, it cuts off at once.
    """
    whole, task = False, asyncio.current_task()
    assert task is not None, "awaited by a task"
    cancelled = task.cancelling()
    try:
        async with asyncio.timeout(deadline_s):
            if isinstance(client, aiokafka.AIOKafkaProducer):
                # Before aiokafka's stop: that leaves a task behind when it is interrupted.
                await client.flush()
            await client.stop()
            whole = True
    except (TimeoutError, KafkaError) as error:
        log.info("client_cut_off", action="client_cut_off", client=type(client).__name__, error=repr(error))
    except asyncio.CancelledError:
        # A consumer without a group, stopped before its own task ever ran, lets that task's cancellation out as if it were ours.
        if task.cancelling() > cancelled:
            raise
    finally:
        if not whole:
            await _cut_off(client)
    if task.cancelling() > cancelled:
        # A consumer takes the cancellation of who stops it for that of its own tasks, and ends as if nothing were.
        raise asyncio.CancelledError
    return whole


async def _cut_off(client: Any) -> None:
    """End the tasks and connections of a client that won't end by itself.

    Reaches into aiokafka 0.14 (pinned), which has no such call; without it the tasks would retry for the rest of the process.
    """
    client._closed = True
    is_producer = isinstance(client, aiokafka.AIOKafkaProducer)
    inner = client.client if is_producer else client._client
    parts = [(getattr(client, part, None), name) for part, name in (PRODUCER_TASKS if is_producer else CONSUMER_TASKS)]
    tasks = {task for part, name in parts if (task := getattr(part, name, None)) is not None}
    # The sender's clean-up awaits its requests, so it may need a second push.
    for _ in range(5):
        tasks = {task for task in tasks if not task.done()}
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.2)
    try:
        async with asyncio.timeout(1):
            await inner.close()
    except (TimeoutError, KafkaError):
        for connection in list(inner._conns.values()):
            connection.close()
