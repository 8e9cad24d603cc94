"""A receiver of webhooks: a real HTTP server whose paths answer as a test says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from polar import webhooks

Answering = Callable[[int], Awaitable[web.Response]]
"""What a path answers to its nth call, from 0."""


@dataclass
class Call:
    """One request that came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.time)

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> dict[str, Any]:
        """Raises WebhookSignatureError."""
        return webhooks.verify_webhook(self.headers, self.body, secret)


class Endpoint:
    """Answers 204 wherever `answers` names no other way."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: dict[str, Answering] = {}
        self.url = ""

    def at(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    async def _answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.calls.append(Call(request.path, headers, await request.read()))
        answering = self.answers.get(request.path, answer(204))
        return await answering(len(self.at(request.path)) - 1)


def answer(*statuses: int, **headers: str) -> Answering:
    """One status after another, the last for ever."""

    async def answering(nth: int) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=statuses[min(nth, len(statuses) - 1)], headers=named)

    return answering


async def hang(_: int) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError("nobody waits that long")


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Endpoint]:
    """An endpoint on loopback; what hangs is cut off at the end."""
    endpoint = Endpoint()
    app = web.Application()
    app.router.add_post("/{path:.*}", endpoint._answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield endpoint
    finally:
        await runner.cleanup()
