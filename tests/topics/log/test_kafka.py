"""How clients are made; what they do is tested where they are used."""

import asyncio
import gc
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from tests.topics.conftest import Apply
from topics import tasks
from topics.environment.settings import Settings
from topics.log import kafka as client
from topics.log.kafka import connection
from topics.types.errors import NotReadyError


def test_a_plain_connection_says_where_and_nothing_more() -> None:
    assert connection(Settings(kafka="a:1,b:2")) == {"bootstrap_servers": "a:1,b:2", "security_protocol": "PLAINTEXT"}


def test_sasl_and_tls_are_passed_through() -> None:
    settings = Settings(
        kafka="a:1",
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism="SCRAM-SHA-512",
        kafka_sasl_username="polar",
        kafka_sasl_password="hush",
    )
    options = connection(settings)
    assert options.pop("ssl_context").check_hostname
    assert options == {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "polar",
        "sasl_plain_password": "hush",
    }


def test_a_password_in_the_clear_is_worth_a_warning_unless_it_stays_on_this_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_bootstraps", set())
    caplog.set_level(logging.WARNING, "aiokafka.conn")  # a command that ran in this process has set another one
    log = logging.getLogger("aiokafka.conn")
    login = Settings(kafka_security_protocol="SASL_PLAINTEXT", kafka_sasl_username="polar", kafka_sasl_password="hush")
    for bootstrap, warned in (("127.0.0.1:1,localhost:2,[::1]:3", 0), ("127.0.0.1:1,broker:2", 1)):
        connection(login.model_copy(update={"kafka": bootstrap}))
        log.warning(client.IN_THE_CLEAR)
        assert len(caplog.records) == warned
    log.warning("another")
    assert len(caplog.records) == 2


def test_a_ca_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match=r"POLAR_KAFKA_CA_FILE=.*none.pem"):
        connection(Settings(kafka="a:1", kafka_security_protocol="SSL", kafka_ca_file=tmp_path / "none.pem"))


def test_without_a_kafka_it_is_said() -> None:
    with pytest.raises(NotReadyError, match="POLAR_KAFKA"):
        connection(Settings(kafka=None))


@pytest.mark.parametrize("steps", range(7))
async def test_who_is_cancelled_while_a_client_stops_is_cancelled(kafka: str, steps: int) -> None:
    """At each step of the stop. A keeper that ended its reading and went on all the same was waited for without an end."""
    reader = client.consumer(Settings(kafka=kafka))
    await reader.start()
    # What is cancelled before it runs never runs.
    begun = asyncio.Event()

    async def stopping() -> str:
        begun.set()
        await client.stop(reader, 5)
        await asyncio.sleep(5)
        return "went on"

    task = asyncio.create_task(stopping())
    await begun.wait()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_stop_that_its_deadline_cut_off_is_no_cancellation(kafka: str) -> None:
    """The deadline cancels what waits for the ends of connections, which take long with TLS. Cutting off waited for them again."""
    reader: Any = client.consumer(Settings(kafka=kafka))
    await reader.start()
    await reader.topics()
    ends = [each._closed_fut for each in reader._client._conns.values()]
    assert [end.cancel() for end in ends] == [True]
    assert not await client.stop(reader, 0)


async def test_a_connection_that_its_broker_ended_is_closed_when_the_client_drops_it(kafka: str) -> None:
    """A client drops a connection at its end, perhaps before the connection's own reader has noticed the end."""
    host, _, port = kafka.rpartition(":")
    dropped = await create_conn(host, int(port))
    socket = dropped._writer.transport
    dropped._reader.feed_eof()
    del dropped
    assert socket.is_closing()


async def test_a_bootstrap_that_is_cancelled_as_its_answer_comes_closes_its_connection(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = client.consumer(Settings(kafka=kafka))
    sockets = []
    send = AIOKafkaConnection.send

    def cancelling(connection: Any, request: Any, expect_response: bool = True) -> Any:
        answer = send(connection, request, expect_response)
        if request.API_KEY == MetadataRequest.API_KEY:
            sockets.append(connection._writer.transport)
            connection._requests[-1][2].add_done_callback(lambda _: starting.cancel())
        return answer

    monkeypatch.setattr(AIOKafkaConnection, "send", cancelling)
    starting = asyncio.create_task(made.start())
    await asyncio.wait([starting])
    assert starting.cancelled()
    await client.stop(made, 5)
    starting = asyncio.create_task(asyncio.sleep(0))  # the ended task's traceback holds the connection
    gc.collect()
    assert [socket.is_closing() for socket in sockets] == [True]


async def test_an_idle_consumer_asks_seldom_and_hears_at_once(
    settings: Settings, apply: Apply, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches = 0
    send = AIOKafkaConnection.send

    def counted(connection: Any, request: Any, expect_response: bool = True) -> Any:
        nonlocal fetches
        fetches += request.API_KEY == FetchRequest.API_KEY
        return send(connection, request, expect_response)

    await apply(tasks.TOPIC)
    monkeypatch.setattr(AIOKafkaConnection, "send", counted)
    name = tasks.TOPIC.full_name(settings.namespace)
    async with (
        client.started(client.consumer(settings), 5) as reader,
        client.started(client.producer(settings), 5) as writer,
    ):
        reader.assign([client.TopicPartition(name, number) for number in range(3)])
        began = time.monotonic()
        while time.monotonic() - began < 4:
            assert not await reader.getmany(timeout_ms=200)
        assert fetches < 5  # with waits of half a second there would be eight
        await (await writer.send(name, b"x", partition=1))
        began = time.monotonic()
        assert await reader.getmany(timeout_ms=int(client.IDLE_FETCH_MS * 0.6))
        # A busy consumer's fetches wait for half a second again.
        fetches, began = 0, time.monotonic()
        while time.monotonic() - began < 1.6:
            await (await writer.send(name, b"x", partition=1))
            await reader.getmany(timeout_ms=100)
        assert fetches >= 3
