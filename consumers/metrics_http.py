"""The HTTP port of a worker's metrics: `polar worker … --metrics-port N`.

`GET /metrics` is Prometheus' text, `/healthz` answers while the event loop runs, `/readyz` while the roles' heartbeats reach Kafka. Nothing
on this port is secret, and no request needs a token. Connections are limited in number and duration, so clients can't hold up the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import structlog
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from topics.types.errors import NotReadyError

CONNECTIONS = 32
"""Prometheus needs one, a person a few."""
REQUEST_S = 8.0
"""For a connection, which carries one request and its answer. Longer than `polar up` waits for one of its parts, and shorter than the
10 s of Prometheus."""
STOP_S = 0.1
"""For answers in progress when the process stops."""

log = structlog.get_logger(__name__)


class Figures(Protocol):
    """A source of metrics, and of readiness."""

    async def scrape(self) -> bytes:
        """Prometheus' text format."""

    def unready_reason(self) -> str | None:
        """None if the process is ready."""


@asynccontextmanager
async def serve_metrics(metrics: Figures, host: str, port: int) -> AsyncIterator[str]:
    """Answer requests inside this context, which gets the URL of the metrics; port 0 is any free port.

    Raises NotReadyError if the port can't be opened.
    """

    async def answer(request: web.BaseRequest) -> web.Response:
        response = await _answer(metrics, request)
        response.force_close()
        return response

    server = _LimitedServer(answer, access_log=None)
    try:
        listener = await asyncio.get_running_loop().create_server(server, host, port)
    except OSError as error:
        raise NotReadyError(
            f"metrics can't be served on {host}:{port}: {error}; choose another --metrics-port"
        ) from None
    bound = listener.sockets[0].getsockname()[1]
    url = f"http://{host}:{bound}/metrics"
    log.info("metrics are served", action="metrics.served", url=url)
    try:
        yield url
    finally:
        listener.close()
        await server.shutdown(STOP_S)


class _LimitedServer(web.Server):
    """aiohttp's server has a limit neither for connections nor for the time in which a request must arrive."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            asyncio.get_running_loop().call_later(REQUEST_S, transport.abort)


async def _answer(metrics: Figures, request: web.BaseRequest) -> web.Response:
    match request.path:
        case _ if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="GET or HEAD\n")
        case "/metrics":
            return web.Response(body=await metrics.scrape(), headers={"Content-Type": CONTENT_TYPE_LATEST})
        case "/healthz":
            return web.Response(text="ok\n")
        case "/readyz":
            reason = metrics.unready_reason()
            return web.Response(text="ok\n") if reason is None else web.Response(status=503, text=f"{reason}\n")
        case _:
            return web.Response(status=404, text="/metrics, /healthz and /readyz are here\n")
