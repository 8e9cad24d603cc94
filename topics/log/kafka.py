"""Kafka clients with the settings that the protocol requires, behind typed Protocols of the aiokafka calls that we use.

aiokafka ships no types, so only this module imports it (and `topics/log/partition.py` its partitioner, `rights.py` its requests
about ACLs, `hanging.py` its protocol). `stop` ends any client within a deadline; aiokafka's own stop hangs while no broker answers
(protocol 19). Retries and replacements are left to the callers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import aiokafka
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import AIOKafkaConnection, create_conn
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
from topics.log import silent_broker
from topics.types.errors import NotReadyError

log = structlog.get_logger()

__all__ = ["KafkaConnectionError", "KafkaError", "MessageSizeTooLargeError", "OffsetOutOfRangeError", "TopicPartition"]

Headers = Sequence[tuple[str, bytes]]

SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 2_000
REQUEST_TIMEOUT_MS = 15_000
"""How long a client waits for an answer from a broker that isn't silent (`silent_broker.py`), or from one that rebalances a group, which
takes at most `SESSION_TIMEOUT_MS`."""
FETCH_MS, IDLE_FETCH_MS = 500, 2_500
"""How long a broker may hold a fetch that finds no record: usually, and of a consumer whose last poll waited and found nothing. An idle
process then sends a fifth of the requests. A busy one would wait for records of a partition that the fetch left out, because the partition
still had records at the client. Both are shorter than `silent_broker.SILENCE_S`."""
FETCHER_LOOK_MS = 1_000
"""How often a consumer's fetcher looks at its partitions when nothing told it to. aiokafka's default, 200 ms, wakes an idle process five
times a second for each of its consumers."""
METADATA_MS = 5_000
"""How often a group's member asks which partitions its topics have: some were deleted and made again. aiokafka's default is 5 min."""
BATCH_TTL_S = 600.0
"""When aiokafka fails a batch that has no leader. It is longer than any sender waits: the senders' deadlines decide, and a failed batch
makes its producer unusable."""
TRANSACTION_BACKOFF_MS = 20
"""Short, since brokers regularly reject a transaction's first batch once, while they verify the partition."""
REFUSALS: Mapping[type[KafkaError], str] = {
    TopicAuthorizationFailedError: "the topic",
    GroupAuthorizationFailedError: "the consumer group",
    TransactionalIdAuthorizationFailed: "the transactional id",
    ClusterAuthorizationFailedError: "something of the cluster",
}
"""The kind of resource that an ACL is missing for; the errors' arguments name the resource."""
LOGIN_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed)
IN_THE_CLEAR = "Sending username and password in the clear"
"""aiokafka's words at each connection with a password and without TLS."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
PRODUCER_TASKS = (("_sender", "_sender_task"),)
CONSUMER_TASKS = (
    ("_fetcher", "_fetch_task"),
    ("_coordinator", "_coordination_task"),
    ("_coordinator", "_heartbeat_task"),
    ("_coordinator", "_commit_refresh_task"),
    ("_coordinator", "_reset_committed_task"),
)
"""Attributes in which aiokafka's clients keep their tasks: part, task."""
MAX_BATCH_BYTES = MIB
"""Of one partition. One request per broker is in flight; a batch holds what gathers meanwhile."""


def is_retriable(error: KafkaError) -> bool:
    """Whether a retry may succeed. aiokafka doesn't count requests that no broker answered in time as retriable; they are."""
    return bool(error.retriable) or isinstance(error, KafkaTimeoutError)


class Record(Protocol):
    """A consumed record (aiokafka's ConsumerRecord)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Unix ms; the broker's clock on topics with LogAppendTime."""
    key: bytes | None
    value: bytes | None
    """None for a tombstone."""
    headers: Headers


class RecordMetadata(Protocol):
    """Position of an acknowledged record."""

    partition: int
    offset: int
    timestamp: int
    """Unix ms; the broker's clock on topics with LogAppendTime."""


class OffsetAndTime(Protocol):
    """The first record at or after a time."""

    offset: int


def _close_dropped(dropped: Any, _end: Callable[[Any], None] = AIOKafkaConnection.__del__) -> None:
    """Close a connection that its client dropped.

    aiokafka 0.14 drops a connection that the broker ended, and closes only one that wasn't ended. Unless the connection's reader came
    first, each restart of a broker would leave an open socket. It also drops the connection, which has no owner, of a bootstrap that is
    cancelled as its answer comes.
    """
    if dropped._on_close_cb is None and dropped.connected() and not dropped._loop.is_closed():
        dropped.close()
    _end(dropped)
    if dropped._reader is not None and not dropped._loop.is_closed():
        dropped._writer.close()


AIOKafkaConnection.__del__ = _close_dropped

_bootstraps: set[str] = set()
"""Those of this process's clients with a password."""


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for aiokafka's warning of a password in the clear, if it goes over loopback alone."""
    hosts = {address.strip().rpartition(":")[0].strip("[]") for each in _bootstraps for address in each.split(",")}
    return record.msg != IN_THE_CLEAR or not hosts <= LOOPBACK


logging.getLogger("aiokafka.conn").addFilter(_is_worth_logging)
AIOKafkaConnection.connect = silent_broker.connected(AIOKafkaConnection.connect)
AIOKafkaConnection.send = silent_broker.watched(AIOKafkaConnection.send)


class Client(Protocol):
    """Methods of consumers and producers."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Consumer(Client, Protocol):
    """The methods of AIOKafkaConsumer that we use. They raise KafkaError."""

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
    """The methods of AIOKafkaProducer that we use. They raise KafkaError."""

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
        """Return once the record is accepted for sending; the future is its acknowledgement. Cancelled earlier, nothing is sent."""

    async def begin_transaction(self) -> None: ...
    async def commit_transaction(self) -> None: ...
    async def abort_transaction(self) -> None: ...
    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group_id: str) -> Awaitable[None]: ...


class Response(Protocol):
    """Response to an admin request."""

    def to_object(self) -> dict[str, Any]: ...


class Admin(Protocol):
    """The methods of AIOKafkaAdminClient that we use. They raise KafkaError; errors of single topics stand in the response."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def describe_cluster(self) -> dict[str, Any]: ...
    async def describe_topics(self, topics: list[str] | None = None) -> list[dict[str, Any]]: ...
    async def create_topics(self, new_topics: Sequence[object]) -> Response: ...
    async def delete_topics(self, topics: list[str]) -> Response: ...
    async def describe_configs(self, config_resources: Sequence[object]) -> list[Response]: ...
    async def alter_configs(self, config_resources: Sequence[object]) -> list[Response]: ...


def connection(settings: Settings) -> dict[str, Any]:
    """aiokafka options that reach the brokers: bootstrap servers, TLS, SASL. Raises NotReadyError for a missing user, password or file."""
    protocol = settings.kafka_security_protocol
    options: dict[str, Any] = {"bootstrap_servers": settings.bootstrap, "security_protocol": protocol}
    if protocol.endswith("SSL"):
        options["ssl_context"] = _tls(settings)
    if protocol.startswith("SASL"):
        if settings.kafka_sasl_username is None:
            raise NotReadyError(f"{protocol} needs a user: set POLAR_KAFKA_SASL_USERNAME")
        _bootstraps.add(settings.bootstrap)
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
        options["sasl_plain_username"] = settings.kafka_sasl_username
        options["sasl_plain_password"] = settings.sasl_password
    return options


def _tls(settings: Settings) -> ssl.SSLContext:
    files = {"cafile": settings.kafka_ca_file, "certfile": settings.kafka_cert_file, "keyfile": settings.kafka_key_file}
    named = ", ".join(
        f"POLAR_KAFKA_{name.removesuffix('file').upper()}_FILE={path}" for name, path in files.items() if path
    )
    try:
        # Without the empty password OpenSSL would prompt on the terminal for an encrypted key.
        made: ssl.SSLContext = create_ssl_context(
            **{name: path and str(path) for name, path in files.items()}, password=""
        )
    except (OSError, ValueError) as error:
        raise NotReadyError(
            f"{named} can't be used for TLS: {error}; expected PEM files, the key without a password"
        ) from None
    return made


async def try_connection(settings: Settings) -> None:
    """Connect to the first broker, log in and disconnect. Raises KafkaError and OSError (ssl.SSLError included) unchanged."""
    options = connection(settings)
    host, _, port = options.pop("bootstrap_servers").partition(",")[0].rpartition(":")
    made = await create_conn(host, int(port), **options)
    made.close()


class _Consumer(aiokafka.AIOKafkaConsumer):  # type: ignore[misc] # aiokafka is untyped
    """Lets brokers hold its fetches longer while it is idle (`IDLE_FETCH_MS`)."""

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None) -> Any:
        found = await super().getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        # aiokafka 0.14 (pinned) reads it for each fetch; the next one is made after this line.
        self._fetcher._fetch_max_wait_ms = IDLE_FETCH_MS if timeout_ms > 0 and not found else FETCH_MS
        return found


def consumer(settings: Settings, *, group: str | None = None, committed: bool = True, **options: Any) -> Consumer:
    """A consumer that never commits by itself. `group` gets the namespace as a prefix; None reads without a group.

    `committed`: isolation level read_committed. `options` are aiokafka's and take precedence; with `fetch_max_wait_ms` fetches always wait
    as long. Needs a running loop.
    """
    kind = aiokafka.AIOKafkaConsumer if "fetch_max_wait_ms" in options else _Consumer
    made: Consumer = kind(
        **connection(settings)
        | {
            "group_id": None if group is None else f"{settings.namespace}.{group}",
            "isolation_level": "read_committed" if committed else "read_uncommitted",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "partition_assignment_strategy": (StickyPartitionAssignor,),
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "fetch_max_wait_ms": FETCH_MS,
            "consumer_timeout_ms": FETCHER_LOOK_MS,
        }
        | ({} if group is None else {"metadata_max_age_ms": METADATA_MS})
        | options
    )
    return made


def producer(
    settings: Settings, *, transactional_id: str | None = None, max_bytes: int = 8 * MIB, **options: Any
) -> Producer:
    """A producer: acks=all, idempotent, zstd. `max_bytes` bounds a record before compression (protocol 29).

    `transactional_id` gets the namespace as a prefix. `options` are aiokafka's and take precedence. Needs a running loop.
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
    # aiokafka 0.14 (pinned) has no setting for it and takes the request timeout.
    made._message_accumulator._batch_ttl = BATCH_TTL_S
    found: Producer = made
    return found


def admin(settings: Settings) -> Admin:
    """An admin client. Needs a running loop."""
    made: Admin = AIOKafkaAdminClient(**connection(settings))
    return made


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> object:
    """Argument for `Admin.create_topics`."""
    return NewTopic(name, partitions, replication, topic_configs=dict(config))


def topic_config(name: str, config: Mapping[str, str] | None = None) -> object:
    """Argument for `Admin.alter_configs` with all settings of a topic; without `config`, for `Admin.describe_configs`."""
    return ConfigResource(ConfigResourceType.TOPIC, name, None if config is None else dict(config))


C = TypeVar("C", bound=Client)


@asynccontextmanager
async def started(client: C, deadline_s: float) -> AsyncIterator[C]:
    """Start a client, and stop it within `deadline_s` after the block, even if the start failed."""
    try:
        await client.start()
        yield client
    finally:
        await stop(client, deadline_s)


async def stop(client: Client, deadline_s: float) -> bool:
    """Stop a client, started or not; return True if it ended by itself, False if it was cut off after `deadline_s`.

    A producer's own stop waits for acknowledgements, for ever while no broker answers. Records that are cut off aren't sent any more,
    unless they are on the wire. Returns within `deadline_s` and two seconds. If cancelled, cuts off at once.
    """
    whole, task = False, asyncio.current_task()
    assert task is not None, "awaited by a task"
    cancelled = task.cancelling()
    try:
        async with asyncio.timeout(deadline_s):
            if isinstance(client, aiokafka.AIOKafkaProducer):
                # aiokafka's stop leaves a task behind when it is interrupted, so the slow part comes first.
                await client.flush()
            await client.stop()
            whole = True
    except (TimeoutError, KafkaError) as error:
        log.info("client_cut_off", action="client_cut_off", client=type(client).__name__, error=repr(error))
    except asyncio.CancelledError:
        # A consumer without a group that stops before its own task ever ran lets that task's cancellation escape.
        if task.cancelling() > cancelled:
            raise
    finally:
        if not whole:
            await _cut_off(client)
    if task.cancelling() > cancelled:
        # A consumer mistakes its caller's cancellation for that of its own tasks, and swallows it.
        raise asyncio.CancelledError
    return whole


async def _cut_off(client: Any) -> None:
    """End the tasks and connections of a client that doesn't end by itself.

    Reaches into aiokafka 0.14 (pinned), which has no such call; otherwise the tasks would retry until the process ends.
    """
    client._closed = True
    is_producer = isinstance(client, aiokafka.AIOKafkaProducer)
    inner = client.client if is_producer else client._client
    parts = [(getattr(client, part, None), name) for part, name in (PRODUCER_TASKS if is_producer else CONSUMER_TASKS)]
    tasks = {task for part, name in parts if (task := getattr(part, name, None)) is not None}
    tasks |= getattr(getattr(client, "_fetcher", None), "_pending_tasks", set())  # requests on the wire
    # The sender's clean-up awaits its requests, so it may need a second cancellation.
    for _ in range(5):
        tasks = {task for task in tasks if not task.done()}
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=0.2)
    task = asyncio.current_task()
    assert task is not None, "awaited by a task"
    cancelled = task.cancelling()
    try:
        async with asyncio.timeout(1):
            await inner.close()
    except (TimeoutError, KafkaError):
        for connection in list(inner._conns.values()):
            connection.close()
    except asyncio.CancelledError:
        # A stop that was interrupted as it waited for connections to end has cancelled the futures of their ends.
        if task.cancelling() > cancelled:
            raise
