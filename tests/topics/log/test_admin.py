"""Topics on a real broker: made, brought in line, refused."""

import asyncio
import dataclasses
import time

import pytest
from aiokafka import AIOKafkaProducer

from tests.topics.specimens import TOPICS
from topics import control, events, fleet, sessions, trajectories, workers
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log import kafka as clients
from topics.log.admin import Applied
from topics.log.producer import LogProducer
from topics.types.errors import InputError, NotReadyError

AHEAD_S = 20 * 3600


async def applied(settings: Settings, *topics: Topic) -> list[str]:
    return [result.outcome for result in await admin.apply(settings, topics, embedded=True)]


async def test_every_topic_is_made_as_its_contract_says_and_the_second_time_nothing_changes(settings: Settings) -> None:
    assert set(await applied(settings, *TOPICS)) == {"created"}
    assert set(await applied(settings, *TOPICS)) == {"unchanged"}
    listed = {found.name: found for found in await admin.listing(settings)}
    assert set(listed) == {topic.full_name(settings.namespace) for topic in TOPICS}
    for topic in TOPICS:
        found = listed[topic.full_name(settings.namespace)]
        assert found.partitions == topic.embedded_partitions
        assert found.config == topic.broker_config(min_insync=1)


async def test_a_setting_that_differs_is_altered_and_an_operators_own_is_kept(settings: Settings) -> None:
    theirs = dataclasses.replace(control.TOPIC, retention_ms=1000, config={"flush.messages": "77"})
    assert await applied(settings, theirs) == ["created"]
    name = control.TOPIC.full_name(settings.namespace)
    assert await admin.apply(settings, [control.TOPIC], embedded=True) == [Applied(name, "altered")]
    assert await applied(settings, control.TOPIC) == ["unchanged"]
    (found,) = await admin.listing(settings)
    assert found.config == control.TOPIC.broker_config(min_insync=1) | {"flush.messages": "77"}


async def test_a_record_may_be_hours_ahead_of_the_broker_s_clock(settings: Settings) -> None:
    """By Kafka's default an hour, and a broker whose clock went back would refuse everything."""
    await applied(settings, control.TOPIC)
    producer = AIOKafkaProducer(**clients.connection(settings))
    await producer.start()
    ahead_ms = int((time.time() + AHEAD_S) * 1000)
    try:
        await producer.send_and_wait(control.TOPIC.full_name(settings.namespace), b"", timestamp_ms=ahead_ms)
    finally:
        await producer.stop()


async def test_another_partition_count_of_a_copartitioned_topic_is_refused(settings: Settings) -> None:
    await applied(settings, dataclasses.replace(events.TOPIC, embedded_partitions=3))
    with pytest.raises(InputError, match=r"\.events: 4 are needed.*POLAR_NAMESPACE \(got '3 partitions'\)"):
        await applied(settings, sessions.TOPIC, events.TOPIC)
    assert [found.name for found in await admin.listing(settings)] == [events.TOPIC.full_name(settings.namespace)]


async def test_a_coordinator_needs_topics_of_one_partition_count(settings: Settings) -> None:
    needed = (events.TOPIC, sessions.TOPIC)
    await applied(settings, sessions.TOPIC)
    with pytest.raises(NotReadyError, match=r"has no topic \S+\.events; `polar topics apply` makes it"):
        await admin.copartitioned_count(settings, needed)
    await applied(settings, dataclasses.replace(events.TOPIC, embedded_partitions=3, copartitioned=False))
    with pytest.raises(
        NotReadyError, match=r"one number of partitions, and \S+\.events has 3, \S+\.sessions has 4: delete"
    ):
        await admin.copartitioned_count(settings, needed)


async def test_another_partition_count_elsewhere_is_left_alone(settings: Settings) -> None:
    await applied(settings, dataclasses.replace(fleet.TOPIC, embedded_partitions=2))
    assert await applied(settings, fleet.TOPIC) == ["unchanged"]


async def test_a_setting_that_the_broker_refuses_is_said(settings: Settings) -> None:
    bad = dataclasses.replace(control.TOPIC, config={"cleanup.policy": "burn"})
    with pytest.raises(InputError, match=r"\.control: the broker refused it: .*burn"):
        await applied(settings, bad)
    await applied(settings, control.TOPIC)
    with pytest.raises(InputError, match=r"\.control: the broker refused it: .*burn"):
        await applied(settings, bad)


async def test_more_replicas_than_brokers_are_refused(settings: Settings) -> None:
    with pytest.raises(InputError, match=r"POLAR_REPLICATION: more copies than this Kafka has brokers .*\(got 3\)"):
        await admin.apply(settings, [workers.TOPIC], embedded=False)


async def test_a_listing_counts_records_and_leaves_other_namespaces_out(
    settings: Settings, producer: LogProducer
) -> None:
    await applied(settings, control.TOPIC, trajectories.TOPIC)
    other = settings.model_copy(update={"namespace": f"{settings.namespace}x"})
    await applied(other, control.TOPIC)
    for n in range(3):
        await producer.send(control.TOPIC, control.Drain(f"w{n}"), key="w")
    assert {found.name: found.records for found in await admin.listing(settings)} == {
        f"{settings.namespace}.control": 3,
        f"{settings.namespace}.trajectories": 0,
    }


async def test_a_kafka_that_is_not_there_is_said(namespace: str) -> None:
    settings = Settings(kafka="127.0.0.1:1", namespace=namespace)
    said = await asyncio.gather(applied(settings, control.TOPIC), admin.listing(settings), return_exceptions=True)
    for each in said:
        assert isinstance(each, NotReadyError)
        assert "Kafka at 127.0.0.1:1 doesn't answer" in str(each)


async def test_stopping_a_client_twice_or_before_it_started_is_well(settings: Settings) -> None:
    for client in (clients.producer(settings), clients.consumer(settings, group="g"), clients.consumer(settings)):
        assert await clients.stop(client, 5)
        assert await clients.stop(client, 5)
