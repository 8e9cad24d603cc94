"""Where a callback goes, and how long its body may take: over real HTTP, with the results and the table's URLs as stand-ins."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import pytest
from aiohttp import web

from polar.rest import answers
from polar.rest.callbacks import FORWARD_S, PATH, Callbacks
from tests.consumers.webhooks.endpoint import Endpoint, hang, receiving
from tests.waiting import eventually
from topics.environment import webhook_signing
from topics.environment.settings import Settings

USUAL_LIMIT = 100
"""Connections of an aiohttp client without a limit of its own."""


@pytest.fixture
async def client() -> AsyncIterator[Endpoint]:
    async with receiving() as endpoint:
        yield endpoint


@pytest.fixture
async def service(client: Endpoint, tmp_path: Path) -> AsyncIterator[str]:
    """URL of the callbacks' route. The tasks are `t` and `h`, whose clients' URLs are `/mine` and `/hangs`."""
    settings = Settings(data=tmp_path)
    settings.webhook_secret_path.parent.mkdir(parents=True, exist_ok=True)
    webhook_signing.ensure_secret_file(settings.webhook_secret_path)

    async def result(_: str) -> bytes:
        return b'"result"'

    urls = {task_id: f"http://rest{PATH}?to={client.url}/{path}" for task_id, path in (("t", "mine"), ("h", "hangs"))}
    callbacks = Callbacks(settings, result, urls.get)
    app = web.Application(middlewares=[answers.answering("token")])
    app.router.add_post(PATH, callbacks.forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}{PATH}"
    await callbacks.close()
    await runner.cleanup()


async def forward(service: str, to: str, tmp_path: Path, task_id: str = "t") -> int:
    """The status of the answer to a signed message about a task."""
    body = json.dumps({"type": "group.finished", "data": {"task_id": task_id}}).encode()
    secrets = webhook_signing.read_secrets(Settings(data=tmp_path).webhook_secret_path)
    headers = webhook_signing.sign("id", int(time.time()), body, secrets)
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{service}?{urlencode({'to': to})}", data=body, headers=headers) as answer,
    ):
        return answer.status


async def test_a_signed_message_sends_a_result_to_its_task_s_own_url_alone(
    service: str, client: Endpoint, tmp_path: Path
) -> None:
    assert await forward(service, f"{client.url}/other", tmp_path) == 403
    assert client.calls == []
    assert await forward(service, f"{client.url}/mine", tmp_path) == 204
    assert [(call.path, call.body) for call in client.calls] == [("/mine", b'"result"')]


async def test_clients_that_hang_delay_no_other_and_are_tried_again(
    service: str, client: Endpoint, tmp_path: Path
) -> None:
    client.answers["/hangs"] = hang
    async with asyncio.TaskGroup() as group:
        hanging = [
            group.create_task(forward(service, f"{client.url}/hangs", tmp_path, "h")) for _ in range(USUAL_LIMIT + 1)
        ]
        await eventually(lambda: len(client.at("/hangs")) == len(hanging), FORWARD_S)
        assert await forward(service, f"{client.url}/mine", tmp_path) == 204
    assert {task.result() for task in hanging} == {502}


async def test_a_body_that_does_not_arrive_ends_the_request(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BODY_S", 0.05)
    host, port = service.removeprefix("http://").partition("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {PATH} HTTP/1.1\r\nHost: rest\r\nContent-Length: 9\r\n\r\n".encode())
    async with asyncio.timeout(10):
        assert b" 408 " in await reader.readline()
    writer.close()
    await writer.wait_closed()
