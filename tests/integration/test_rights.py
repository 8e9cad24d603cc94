"""Logins on an embedded Kafka: on a log that was made without them, and rights that change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.embedded import Broker
from polar.embedded.properties import NODE_USER, Security
from topics import tasks
from topics.contract.acl import Right
from topics.environment.settings import Settings
from topics.log import admin, kafka, rights
from topics.types.errors import NotReadyError

pytestmark = pytest.mark.contract
USER, PASSWORD = "someone", "of someone"
TOPIC = tasks.TOPIC.full_name("polar")


async def write(settings: Settings) -> int:
    """Writes a record; its offset."""
    async with kafka.started(kafka.producer(settings), 5) as producer:
        await (await producer.send(TOPIC, b"{}", partition=0))
    async with kafka.started(kafka.consumer(settings), 5) as reader:
        partition = kafka.TopicPartition(TOPIC, 0)
        return (await reader.end_offsets([partition]))[partition] - 1


def test_a_log_made_without_logins_starts_with_them_and_rights_become_what_the_table_says(tmp_path: Path) -> None:
    with Broker(tmp_path, announce=print) as broker:
        settings = Settings(kafka=broker.bootstrap, data=tmp_path)
        asyncio.run(admin.apply(settings, [tasks.TOPIC], embedded=True))
        assert asyncio.run(write(settings)) == 0
    security = Security("SASL_PLAINTEXT", users={USER: PASSWORD}, authorizer=True)
    with Broker(tmp_path, announce=print, security=security) as broker:

        def of(user: str, password: str) -> Settings:
            login = {"kafka_sasl_username": user, "kafka_sasl_password": password}
            return settings.model_copy(update={"kafka_security_protocol": "SASL_PLAINTEXT", **login})

        operator, someone = of(NODE_USER, security.node_password), of(USER, PASSWORD)
        writes = Right("topic", TOPIC, ("Read", "Write"))
        asyncio.run(rights.apply(operator, {f"User:{USER}": [writes]}))
        assert asyncio.run(write(someone)) == 1
        asyncio.run(rights.apply(operator, {f"User:{USER}": [Right("topic", "polar.", ("Read",), prefixed=True)]}))
        with pytest.raises(kafka.KafkaError, match="uthorization"):
            asyncio.run(write(someone))
        with pytest.raises(NotReadyError, match="lets the login 'someone' see or change no ACLs") as refused:
            asyncio.run(rights.apply(someone, {f"User:{USER}": [writes]}))
        assert "Request(" not in str(refused.value)
        assert "set POLAR_KAFKA_SASL_USERNAME" in str(refused.value)
        asyncio.run(rights.apply(operator, {f"User:{USER}": [writes]}))
        elsewhere = operator.model_copy(update={"namespace": "other"})
        asyncio.run(rights.apply(elsewhere, {f"User:{USER}": []}))
        assert asyncio.run(write(someone)) == 2, "other namespaces are left alone"


def test_the_command_gives_each_principal_the_rights_of_its_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = Security("SASL_PLAINTEXT", users={USER: PASSWORD}, authorizer=True)
    with Broker(tmp_path, announce=print, security=security) as broker:
        settings = Settings(kafka=broker.bootstrap, data=tmp_path, kafka_security_protocol="SASL_PLAINTEXT")
        someone = settings.model_copy(update={"kafka_sasl_username": USER, "kafka_sasl_password": PASSWORD})
        operator = {"kafka_sasl_username": NODE_USER, "kafka_sasl_password": security.node_password}
        asyncio.run(admin.apply(settings.model_copy(update=operator), [tasks.TOPIC], embedded=True))
        given = {"kafka": broker.bootstrap, "kafka_security_protocol": "SASL_PLAINTEXT", **operator}
        for name, value in given.items():
            monkeypatch.setenv(f"POLAR_{name.upper()}", value)
        roles = ("fanout", "submitter")
        options = [option for role in roles for option in ("--role", role, "--principal-of", f"{role}=User:{USER}")]
        applied = CliRunner().invoke(app, ["topics", "acl", *options, "--apply"])
        assert applied.exit_code == 0, applied.output
        assert asyncio.run(write(someone)) == 0
