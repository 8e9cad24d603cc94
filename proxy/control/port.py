"""The control port: health, readiness, metrics and the control API. It listens on loopback by default.

The API always requires the control token, metrics require it if one is set.

GET /healthz: the event loop runs. GET /readyz: whether calls are served, and if not, why. GET /metrics: Prometheus' text format.
GET /openapi.json: the model API. POST /v1/…: `proxy/control/api.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
from aiohttp import web

from proxy.control.api import BODY_BYTES, ControlApi, has_token, json_errors
from proxy.metrics import ProxyMetrics
from topics.types.errors import InputError

Obstacle = Callable[[], str | None]
"""Why calls aren't served; None if they are."""


def token_in(file: Path | None) -> str | None:
    """The control token; None if none is set. Raises FileNotFoundError, or InputError for a file without a token."""
    if file is None:
        return None
    try:
        token = file.read_text().strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        # Every request without a token would match an empty one.
        raise InputError("POLAR_CONTROL_TOKEN_FILE", str(file), "must hold a token, as text")
    return token


def application(
    metrics: ProxyMetrics, obstacle: Obstacle, api: ControlApi, token: str | None, published: Callable[[], str]
) -> web.Application:
    """The control port's routes. `published` returns the OpenAPI document, and is called once."""
    published = cache(published)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readyz(_: web.Request) -> web.Response:
        why = obstacle()
        body = msgspec.json.encode({"ready": why is None, "reason": why})
        return web.Response(status=200 if why is None else 503, body=body, content_type="application/json")

    async def figures(request: web.Request) -> web.Response:
        if token is not None and not has_token(request, token):
            return web.Response(status=401, text="expected Authorization: Bearer and the control token\n")
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def contract(_: web.Request) -> web.Response:
        return web.Response(text=published(), content_type="application/json")

    app = web.Application(client_max_size=BODY_BYTES, middlewares=[json_errors])
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", figures)])
    app.add_routes([web.get("/openapi.json", contract)])
    app.add_routes(api.routes())
    return app
