"""What Kafka lets each role do on each topic is what the table of rights lists, no more and no less: every write and read is tried."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import DescribeAclsRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from polar.embedded.properties import Security
from tests.kafka_cluster import Cluster
from tests.security.system import allow
from topics import trajectories
from topics.contract import acl, catalogue
from topics.environment.settings import Settings
from topics.log import admin, kafka, rights

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

SUPER = "super"
TOPICS = (*catalogue.FIXED, *catalogue.of_pool(catalogue.DEFAULT_POOL), trajectories.topic("mine"))
OK, REFUSED = 0, 29
"""Kafka's codes: no error, TopicAuthorizationFailed."""
NODE = 1
ANSWER_MS = 10_000
CHANGES = 20


@dataclass(frozen=True)
class Secured:
    """A Kafka on which each role is the user of its own name, with the rights that the table lists."""

    bootstrap: str

    def settings(self, user: str) -> Settings:
        return Settings(
            kafka=self.bootstrap,
            kafka_security_protocol="SASL_PLAINTEXT",
            kafka_sasl_mechanism="PLAIN",
            kafka_sasl_username=user,
            kafka_sasl_password=password(user),
            replication=1,
            min_insync=1,
        )

    @property
    def topics(self) -> list[str]:
        return [topic.full_name(self.settings(SUPER).namespace) for topic in TOPICS]


def password(user: str) -> str:
    return f"password-of-{user}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    security = Security(
        "SASL_PLAINTEXT",
        users={user: password(user) for user in (*acl.ROLES, SUPER)},
        super_users=frozenset({SUPER}),
        authorizer=True,
    )
    data: Path = tmp_path_factory.mktemp("rights")
    with Cluster(data, NODE, announce=print, security=security) as started:
        yield started
        started.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(cluster: Cluster) -> AsyncIterator[Secured]:
    made = Secured(cluster.bootstrap)
    settings = made.settings(SUPER)
    await admin.apply(settings, TOPICS, embedded=True)
    await allow(settings, acl.commands(acl.ROLES, settings.namespace, {}, cluster.bootstrap))
    yield made


def listed(role: str, operation: acl.Operation, topics: Sequence[str]) -> set[str]:
    """The topics on which the table lists the operation for the role."""
    rights = [right for right in acl.rights(role, "polar") if right.kind == "topic" and operation in right.operations]
    return {
        topic
        for topic in topics
        if any(topic.startswith(right.name) if right.prefixed else topic == right.name for right in rights)
    }


async def answers(settings: Settings, request: Any) -> dict[str, int]:
    """Kafka's error code for each topic of a request to write or to read partition 0."""
    client = AIOKafkaAdminClient(**kafka.connection(settings))
    await client.start()
    try:
        answer = await client._send_request_to_node(NODE, request)
    finally:
        await client.close()
    topics: Mapping[str, Any] = dict(answer.topics)
    return {topic: partitions[0][1] for topic, partitions in topics.items()}


def batch() -> bytes:
    """One record, as a producer sends it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=4096,
    )
    assert builder.append(0, timestamp=1_000, key=b"k", value=b"{}", headers=[]) is not None
    return bytes(builder.build())


@pytest.mark.parametrize("role", acl.ROLES)
async def test_a_role_writes_and_reads_the_topics_of_its_list_and_no_others(secured: Secured, role: str) -> None:
    settings, topics = secured.settings(role), secured.topics
    writes = ProduceRequest(None, -1, ANSWER_MS, [(topic, [(0, batch())]) for topic in topics])
    reads = FetchRequest(0, 0, 1 << 20, 0, [(topic, [(0, 0, 1 << 16)]) for topic in topics])
    written, read = await asyncio.gather(answers(settings, writes), answers(settings, reads))
    outcomes: dict[acl.Operation, dict[str, int]] = {"Write": written, "Read": read}
    for operation, found in outcomes.items():
        allowed = listed(role, operation, topics)
        assert found == {topic: OK if topic in allowed else REFUSED for topic in topics}, operation


async def test_when_rights_are_applied_every_broker_knows_them(tmp_path: Path) -> None:
    """A process that starts then may ask any of them, and ends if it is refused."""
    security = Security("SASL_PLAINTEXT", {SUPER: password(SUPER)}, super_users=frozenset({SUPER}), authorizer=True)
    with Cluster(tmp_path, 3, announce=print, security=security) as three:
        settings = Secured(three.bootstrap).settings(SUPER)
        client = AIOKafkaAdminClient(**kafka.connection(settings))
        await client.start()
        try:
            for change in range(CHANGES):
                wanted = acl.rights("reader", settings.namespace) if change % 2 else []
                await rights.apply(settings, {"User:reader": wanted})
                known = await asyncio.gather(*(acls_known_to(client, node) for node in three.nodes))
                assert len(set(known)) == 1, f"change {change}"
                assert bool(known[0]) == bool(wanted)
        finally:
            await client.close()
            three.kill()


async def acls_known_to(client: AIOKafkaAdminClient, node: int) -> int:
    answer = await client._send_request_to_node(node, DescribeAclsRequest(*rights.ALL))
    return sum(len(granted) for *_, granted in answer.resources)
