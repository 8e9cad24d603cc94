"""The cluster: who gets in with which security, and who may do what. One node: three are `tests/integration/test_bad_days.py`'s."""

import asyncio
import os
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polar.embedded import BrokerError
from polar.embedded.properties import Security
from tests.kafka_cluster import Cluster
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.log import kafka

pytestmark = pytest.mark.hard

DEADLINE_S = 30.0
CLUSTER_AUTHORIZATION_FAILED = 31
TOPIC_AUTHORIZATION_FAILED = 29
SECURITY = Security(
    "SASL_SSL",
    users={"alice": "of alice", "admin": "of admin"},
    scram=True,
    super_users=frozenset({"admin"}),
    authorizer=True,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("secured"), 1, announce=print, security=SECURITY) as started:
        yield started


def settings(cluster: Cluster, user: str = "admin", mechanism: str = "SCRAM-SHA-512", **other: Any) -> Settings:
    given: dict[str, Any] = {
        "kafka": cluster.bootstrap,
        "kafka_security_protocol": "SASL_SSL",
        "kafka_ca_file": cluster.authority,
        "kafka_sasl_mechanism": mechanism,
        "kafka_sasl_username": user,
        "kafka_sasl_password": f"of {user}",
    }
    return Settings(**given | other)


async def create(with_settings: Settings, topic: str) -> int:
    """The broker's error code for the creation of a topic. Raises KafkaError where the client doesn't get in."""
    admin = kafka.admin(with_settings)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await admin.start()
            answer = await admin.create_topics([kafka.new_topic(topic, 1, 1, {})])
    finally:
        await admin.close()
    code: int = answer.to_object()["topic_errors"][0]["error_code"]
    return code


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_who_has_a_password_gets_in_and_may_do_what_the_authorizer_lets_him(
    cluster: Cluster, namespace: str, mechanism: str
) -> None:
    assert await create(settings(cluster, "admin", mechanism), namespace) == 0
    refused = await create(settings(cluster, "alice", mechanism), f"{namespace}.more")
    assert refused in {TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kafka_sasl_password": "guessed"},
        {"kafka_sasl_username": "mallory"},
        {"kafka_ca_file": None},
        {"kafka_security_protocol": "SSL"},
        {"kafka_security_protocol": "PLAINTEXT"},
    ],
    ids=["password", "user", "authority", "no login", "no TLS"],
)
async def test_who_hasnt_the_right_settings_doesnt_get_in(
    cluster: Cluster, namespace: str, wrong: dict[str, Any]
) -> None:
    before = sockets()
    with pytest.raises(kafka.KafkaError):
        await create(settings(cluster, **wrong), namespace)
    # With TLS, a connection is closed once the broker has ended it, too.
    await eventually(lambda: sockets() <= before)


def sockets() -> set[str]:
    """The open sockets of this process."""
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(file))  # noqa: PTH115 - `socket:[1]` is no path
    return {name for name in found if name.startswith("socket:")}


def test_passwords_lie_where_only_their_owner_reads(cluster: Cluster) -> None:
    properties = cluster.folder(1).properties
    assert "of alice" in properties.read_text()
    assert properties.stat().st_mode & 0o077 == 0


def test_the_certificate_is_good_for_loopback(cluster: Cluster) -> None:
    host, _, port = cluster.bootstrap.partition(":")
    pem = ssl.get_server_certificate((host, int(port)), ca_certs=str(cluster.authority), timeout=DEADLINE_S)
    assert pem.split() == cluster.authority.read_text().split()


def test_a_cluster_has_no_address_before_its_first_start(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="call start"):
        _ = Cluster(tmp_path, announce=print).bootstrap
