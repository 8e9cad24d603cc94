"""Kafka of `polar up` admits no one without a login, and each login has the rights of its roles alone."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from polar.embedded import metadata_probe
from polar.embedded.folder import Folder
from polar.embedded.properties import NODE_USER
from tests.acceptance.up.running import Up
from topics import completions, sessions, trajectories
from topics.contract.topic import Topic
from topics.environment import settings
from topics.environment.settings import Settings
from topics.log import kafka, logins
from topics.log.owner import read_back
from topics.log.refusals import connection_refusal

CREATE_TOPICS = 19
"""Kafka's API key. Brokers and controllers answer it."""
STOP_S = 5.0


def creation(topic: str) -> bytes:
    """Body of CreateTopics, version 2: one topic, one partition, one copy."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    return struct.pack(">i", 1) + name + struct.pack(">ihiii?", 1, 1, 0, 0, 10_000, False)


def of_login(up: Up, login: str) -> Settings:
    roles = logins.LOGINS[login]
    return logins.of_roles(settings.load(up.data), roles)


@pytest.mark.parametrize("listener", ["broker", "controller"])
def test_a_client_without_a_login_gets_no_answer(up: Up, listener: str) -> None:
    """A topic is what anyone could create on a controller that listens without logins."""
    port = getattr(Folder(up.data).ports(), listener)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=metadata_probe.ANSWER_S * 10) as connection,
        pytest.raises((EOFError, ConnectionResetError)),
    ):
        metadata_probe._ask(connection, CREATE_TOPICS, 2, creation("polar.by-a-stranger"))
    assert "by-a-stranger" not in up.polar("topics", "list").stdout


def test_a_guessed_password_and_a_process_on_the_controllers_listener_are_refused(up: Up) -> None:
    known = of_login(up, "stages")
    controller = f"127.0.0.1:{Folder(up.data).ports().controller}"
    guessed = {"kafka_sasl_password_file": None, "kafka_sasl_password": "guessed"}
    for tried in (
        known.model_copy(update=guessed),
        known.model_copy(update=guessed | {"kafka_sasl_username": NODE_USER}),
        known.model_copy(update={"kafka": controller}),
    ):
        refused = asyncio.run(connection_refusal(tried))
        assert refused is not None
        assert "refuses the login" in str(refused)
    assert asyncio.run(connection_refusal(known)) is None


@pytest.mark.parametrize("login", ["stages", "lake", logins.PERSON])
def test_a_login_forges_no_trajectory_no_build_and_no_session(up: Up, login: str) -> None:
    """The test tries to write copies of records that are on these topics already."""
    assert up.submit(f"for-{login}", "true", "--wait").returncode == 0

    async def first(topic: Topic) -> kafka.Record:
        found = of_login(up, logins.PERSON)
        for partition in range(topic.partition_count(embedded=True)):
            async for record in read_back(found, topic.full_name(found.namespace), partition):
                return record
        raise AssertionError(f"no record of {topic.name}")

    async def forge() -> None:
        for topic in (trajectories.TOPIC, completions.TOPIC, sessions.TOPIC):
            record = await first(topic)
            async with kafka.started(kafka.producer(of_login(up, login)), STOP_S) as producer:
                with pytest.raises(TopicAuthorizationFailedError):
                    await (await producer.send(record.topic, record.value, key=record.key, partition=record.partition))

    asyncio.run(forge())


def test_passwords_are_their_owners_alone_and_stay_out_of_command_lines_and_environments(up: Up) -> None:
    folder = up.data / "logins"
    files = sorted(folder.iterdir())
    assert [file.stem for file in files] == sorted(logins.LOGINS)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    shown = "\n".join(" ".join([*part.cmdline(), *part.environ().values()]) for part in up.descendants())
    shown += (up.data / "polar.env").read_text() + up.output.read_text()
    assert str(folder) in shown
    assert not [file.name for file in files if file.read_text() in shown]
