"""The control port: is it alive, does it serve, what has it counted. Loopback unless told otherwise.

Figures are behind a token where one is set.

GET /healthz: the loop runs. GET /readyz: calls are served, and if not, why. GET /metrics: Prometheus' text.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path

import msgspec
from aiohttp import web

from proxy.metrics import Metrics

Obstacle = Callable[[], str | None]
"""Why calls aren't served; None when they are."""


def application(metrics: Metrics, obstacle: Obstacle, token_file: Path | None) -> web.Application:
    """The control port's routes. Raises FileNotFoundError for a token file that isn't there."""
    token = token_file.read_text().strip() if token_file is not None else None

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def readyz(_: web.Request) -> web.Response:
        why = obstacle()
        body = msgspec.json.encode({"ready": why is None, "reason": why})
        return web.Response(status=200 if why is None else 503, body=body, content_type="application/json")

    async def figures(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
            return web.Response(status=401, text="expected Authorization: Bearer and the control token\n")
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", figures)])
    return app
