"""Clients that misbehave, over real HTTP and without Kafka: streams that nobody reads, clients that vanish, rubbish."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import TypeAlias

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from polar import event_streams
from polar.rest.api import RestApi
from polar.rest.event_stream import EventBus
from polar.rest.result_log import ResultLog
from polar.table import SessionTable
from tests.waiting import eventually
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.types.session import Phase, SessionState

Rest: TypeAlias = TestClient[web.Request, web.Application]
HEADERS = {"Authorization": "Bearer t"}
WAIT_S = 60.0
LARGE = "w" * 100_000
"""A worker's id: some hundreds of events fill all buffers of a connection."""


@pytest.fixture
def bus() -> EventBus:
    return EventBus(ping_s=0.05)


@pytest.fixture
async def client(bus: EventBus) -> AsyncIterator[Rest]:
    settings = Settings(kafka="127.0.0.1:1")
    api = RestApi(settings, SessionTable(settings), bus, base_url="http://127.0.0.1", files=None)
    async with TestClient(TestServer(api.application("t")), headers=HEADERS) as found:
        yield found
    await api.close()


def row(index: int) -> SessionState:
    return SessionState(f"t.{index}", "t", index, Phase.RUNNING, 1, worker_id=LARGE)


async def opened(client: Rest, head: str, length: int = 0) -> socket.socket:
    """A connection that has sent the head of a request."""
    connection = socket.create_connection((client.host, client.port), timeout=WAIT_S)
    lines = [f"{head} HTTP/1.1", "Host: rest", *(f"{name}: {value}" for name, value in HEADERS.items())]
    lines += [f"Content-Length: {length}"] if length else []
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    return connection


async def test_a_stream_that_nobody_reads_ends(
    client: Rest,
    bus: EventBus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_streams, "WRITE_S", 0.2)
    with await opened(client, "GET /events"):
        await eventually(lambda: bus._streams, WAIT_S)
        for index in range(1000):
            bus.on_row(row(index), None)
            await asyncio.sleep(0)
        await eventually(lambda: not bus._streams, WAIT_S)


async def test_a_client_of_a_stream_that_vanishes_is_no_error(
    client: Rest,
    bus: EventBus,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with await opened(client, "GET /events"):
        await eventually(lambda: bus._streams, WAIT_S)
    await eventually(lambda: not bus._streams, WAIT_S)
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_stream_has_no_head(client: Rest) -> None:
    """It would have no body to write, and so it would never notice that its client has left."""
    async with asyncio.timeout(WAIT_S), client.head("/events") as answer:
        assert answer.status == 405


async def test_a_client_that_vanishes_within_its_body_is_no_error(
    client: Rest,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = client.server.runner.server  # type: ignore[union-attr]
    assert server is not None
    with await opened(client, "POST /rollout/task/submit", length=100):
        await eventually(lambda: server.requests_count, WAIT_S)
    await eventually(lambda: not server.connections, WAIT_S)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "failed" not in capfd.readouterr().out


@pytest.mark.parametrize("field", ["callback_url", "metadata", "agent"])
async def test_deep_nesting_is_the_callers_error(client: Rest, field: str) -> None:
    """JSON as deep as the decoder takes is too deep for what comes after it."""
    for depth in (300, 600, 900, 980):
        body = b'{"task_id": "t", "num_sample": 1, "%s": %s%s}' % (field.encode(), b"[" * depth, b"]" * depth)
        async with client.post("/rollout/task/submit", data=body) as answer:
            assert answer.status == 422


async def test_an_error_names_the_place_of_its_field(client: Rest) -> None:
    async with client.get("/tasks?limit=0") as answer:
        assert (await answer.json())["detail"][0]["loc"] == ["query", "limit"]
    async with client.post("/rollout/task/submit", data=b"[]") as answer:
        assert (await answer.json())["detail"][0]["loc"] == ["body", "task"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nodes"), ("GET", "/rollout/status"), ("POST", "/rollout/admin/inference/pause")],
)
async def test_without_kafka_an_answer_is_503(client: Rest, method: str, path: str) -> None:
    async with client.request(method, path) as answer:
        assert answer.status == 503
        assert "Kafka at 127.0.0.1:1 doesn't answer" in (await answer.json())["detail"]


async def test_a_read_that_waits_for_others_has_their_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar.rest.result_log.READ_S", 0.05)
    monkeypatch.setattr("polar.rest.result_log.READS", 0)
    with pytest.raises(NotReadyError, match="doesn't answer"):
        async with asyncio.timeout(WAIT_S):
            await ResultLog(Settings(kafka="127.0.0.1:1")).results(
                None, [SessionState("t.0", "t", 0, Phase.ENDED, 1)], 0
            )
