"""The control port: is it alive, does it serve, what has it counted; and the control API. Loopback unless told otherwise.

Figures are behind a token where one is set, the API always.

GET /healthz: the loop runs. GET /readyz: calls are served, and if not, why. GET /metrics: Prometheus' text. GET /openapi.json: what the
model API serves. POST /v1/…: `api`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
from aiohttp import web

from proxy.control.api import BODY_BYTES, ControlApi, is_shown, json_errors
from proxy.metrics import ProxyMetrics
from topics.types.errors import InputError

Obstacle = Callable[[], str | None]
"""Why calls aren't served; None when they are."""


def token_in(file: Path | None) -> str | None:
    """The control token; None where none is set. Raises FileNotFoundError; InputError for a file that holds none."""
    if file is None:
        return None
    try:
        token = file.read_text().strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        # Every request without a token would show this one.
        raise InputError("POLAR_CONTROL_TOKEN_FILE", str(file), "must hold a token, as text")
    return token


def application(
    metrics: ProxyMetrics, obstacle: Obstacle, api: ControlApi, token: str | None, published: Callable[[], str]
) -> web.Application:
    """The control port's routes. `published` makes the OpenAPI document, once."""
    published = cache(published)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readyz(_: web.Request) -> web.Response:
        why = obstacle()
        body = msgspec.json.encode({"ready": why is None, "reason": why})
        return web.Response(status=200 if why is None else 503, body=body, content_type="application/json")

    async def figures(request: web.Request) -> web.Response:
        if token is not None and not is_shown(request, token):
            return web.Response(status=401, text="expected Authorization: Bearer and the control token\n")
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def contract(_: web.Request) -> web.Response:
        return web.Response(text=published(), content_type="application/json")

    app = web.Application(client_max_size=BODY_BYTES, middlewares=[json_errors])
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", figures)])
    app.add_routes([web.get("/openapi.json", contract)])
    app.add_routes(api.routes())
    return app
