"""Leaves a transaction open for ever, as Kafka 4.3 does for a partition that has no leader when the transaction ends (KAFKA-20734)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.owner import FencedProducer, Write

SET_S = 30.0
VERIFICATION = "transaction.partition.verification.enable"


async def leave_open(
    settings: Settings, producer: FencedProducer, ended: Sequence[Write], left_open: Sequence[Write], *, commits: bool
) -> None:
    """One transaction of all these writes that ends on the partitions of `ended` alone; those of `left_open` must be others.

    Kafka isn't told of the others' partitions, so it sends them no marker; it would refuse their records if it verified them.
    """
    inner: Any = producer._producer
    async with _unverified(settings):
        await producer.begin()
        await producer.write(ended)
        for write in left_open:
            await inner.partitions_for(write.topic)
            inner._txn_manager._txn_partitions.add(kafka.TopicPartition(write.topic, write.partition))
        await producer.write(left_open)
        await (inner.commit_transaction() if commits else inner.abort_transaction())


@asynccontextmanager
async def _unverified(settings: Settings) -> AsyncIterator[None]:
    client = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await client.start()
    try:
        await _set(client, "false")
        yield
    finally:
        await _set(client, "true")
        await client.close()


async def _set(client: AIOKafkaAdminClient, value: str) -> None:
    answers = await client.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", {VERIFICATION: value})])
    refused = [resource for answer in answers for resource in answer.resources if resource[0] != 0]
    assert refused == []

    async def is_set() -> bool:
        """The controller has it; the broker learns it a moment later."""
        asked = await client.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])
        resources = [resource for answer in asked for resource in answer.to_object()["resources"]]
        entries = [entry for resource in resources for entry in resource["config_entries"]]
        return {each["config_value"] for each in entries if each["config_names"] == VERIFICATION} == {value}

    await eventually(is_set, SET_S)
