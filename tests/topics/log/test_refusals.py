"""Who is let in: certificates and what is said of those that are no good. The server is a stand-in that ends each connection after TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from tests.certificates import certificate
from topics.environment.settings import Settings
from topics.log import kafka
from topics.log.refusals import connection_refusal, refusal

DEADLINE_S = 20.0

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with the openssl command"),
]


@dataclass
class Server:
    """Wants a certificate of `client`, and remembers whose came."""

    folder: Path
    port: int = 0
    came: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    def settings(self, **files: Any) -> Settings:
        return Settings(kafka=f"127.0.0.1:{self.port}", kafka_security_protocol="SSL", **files)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    for name in ("server", "client", "stranger"):
        certificate(tmp_path, name)
    made = Server(tmp_path)

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.came.put_nowait(writer.get_extra_info("peercert"))
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "client.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listening = await asyncio.start_server(met, "127.0.0.1", 0, ssl=context)
    made.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield made


async def test_a_client_shows_its_certificate(server: Server) -> None:
    folder = server.folder
    settings = server.settings(
        kafka_ca_file=folder / "server.pem", kafka_cert_file=folder / "client.pem", kafka_key_file=folder / "client.key"
    )
    with pytest.raises(kafka.KafkaError):
        await kafka.try_connection(settings)
    async with asyncio.timeout(DEADLINE_S):
        shown = await server.came.get()
    assert shown["subject"] == ((("commonName", "client"),),)


async def test_an_authority_that_hasnt_signed_is_named(server: Server) -> None:
    stranger = server.folder / "stranger.pem"
    said = await connection_refusal(server.settings(kafka_ca_file=stranger))
    assert said is not None
    assert str(stranger) in str(said)
    assert "set POLAR_KAFKA_CA_FILE" in str(said)


async def test_a_broker_that_is_away_refuses_nobody(unused_tcp_port: int) -> None:
    assert await connection_refusal(Settings(kafka=f"127.0.0.1:{unused_tcp_port}")) is None


def test_what_an_acl_is_missing_for_is_named() -> None:
    settings = Settings(kafka="b:1", kafka_sasl_username="run")
    for error, what in (
        (TopicAuthorizationFailedError({"ns.b", "ns.a"}), "the topic ns.a ns.b"),
        (TopicAuthorizationFailedError("ns.a"), "the topic ns.a"),
        (GroupAuthorizationFailedError("ns.run.default"), "the consumer group ns.run.default"),
    ):
        assert f"Kafka refuses run {what}: an ACL is missing" in str(refusal(settings, error))
    assert refusal(settings, kafka.KafkaConnectionError("away")) is None
