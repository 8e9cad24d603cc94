"""Hanging transactions (KIP-664): Kafka has ended them, but not on all of their partitions.

Committed reading stops at such a transaction's first record, for ever. Kafka 4.3 leaves out a partition that has no leader at that
moment, as if it were deleted (KAFKA-20734); partitions have none while brokers come back from an outage. The next transaction of the
same transactional id on that partition ends the hanging one too, in its own way. An owner reads before it writes, so it ends them first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import CoordinationType
from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import kafka

STOP_S = 5.0
DESCRIBE_TRANSACTIONS = 65
UNKNOWN_ID = 105
"""TRANSACTIONAL_ID_NOT_FOUND."""
COMMITTED = frozenset({"PrepareCommit", "CompleteCommit"})
"""Kafka's codes and states."""


async def held_back(
    settings: Settings, topics: Collection[Topic], partitions: Collection[int]
) -> dict[kafka.TopicPartition, int]:
    """Those of the partitions with committed records that an open transaction hides; the offset of its first record.

    Topics that don't exist are left out. Raises KafkaError.
    """
    async with (
        kafka.started(kafka.consumer(settings, committed=False), STOP_S) as edge,
        kafka.started(kafka.consumer(settings), STOP_S) as reader,
    ):
        names = {topic.full_name(settings.namespace) for topic in topics} & await edge.topics()
        sources = [kafka.TopicPartition(name, number) for name in names for number in partitions]
        ends = await edge.end_offsets(sources)
        # Asked later, so that it is smaller only where a transaction was open at both times.
        stable = await reader.end_offsets(sources)
    return {source: stable[source] for source in sources if stable[source] < ends[source]}


async def is_committed(settings: Settings, transactional_id: str) -> bool:
    """Whether the newest transaction of the id (without the namespace) is committed, or about to be; a new producer makes Kafka forget it.

    False also if Kafka knows of none. Raises KafkaError.
    """
    name = f"{settings.namespace}.{transactional_id}"
    client = AIOKafkaAdminClient(**kafka.connection(settings))
    try:
        await client.start()
        node = await client._client.coordinator_lookup(CoordinationType.TRANSACTION, name)
        answer = await client._send_request_to_node(node, _Describe(name))
    finally:
        await client.close()
    ((code, _, state, *_),) = answer.transactions
    if code not in (0, UNKNOWN_ID):
        raise for_code(code)(name)
    return state in COMMITTED


def add_to_transaction(producer: Any, partitions: Iterable[kafka.TopicPartition]) -> None:
    """Let the open transaction of an AIOKafkaProducer end on these partitions too, without a record there.

    Reaches into aiokafka 0.14 (pinned), which has no such call.
    """
    for partition in partitions:
        producer._txn_manager.maybe_add_partition_to_txn(partition)


class _Described(Response):  # type: ignore[misc] # aiokafka ships no types
    """Source: the Kafka protocol guide (DescribeTransactions, version 0)."""

    API_KEY = DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "transactions",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString("utf-8")),
                ("state", CompactString("utf-8")),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DescribeV0(RequestStruct):  # type: ignore[misc] # aiokafka ships no types
    API_KEY = DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Described
    SCHEMA = Schema(("transactional_ids", CompactArray(CompactString("utf-8"))), ("tags", TaggedFields))


class _Describe(Request[_DescribeV0]):  # type: ignore[misc] # aiokafka ships no types
    API_KEY = DESCRIBE_TRANSACTIONS

    def __init__(self, transactional_id: str) -> None:
        self._ids = [transactional_id]

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(self._ids, {})
