"""Runs the page until a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

from aiohttp import web

from consumers.metrics_http import serve_metrics
from polar.http_metrics import HttpMetrics
from polar.page.access import add_headers, guard, is_loopback, token_of
from polar.page.api import BODY_BYTES, Api
from polar.page.following import Following
from polar.page.openapi import document
from proxy.addresses import Binding, bound, url
from proxy.control.api import json_errors
from topics.environment.settings import Settings
from topics.waiting.first_done import first_done

STOP_S = 5.0
"""For requests in progress when the process stops; a pause that waits for calls is undone."""


def application(settings: Settings, api: Api, host: str) -> web.Application:
    """The application of a page that listens on the address `host`. Raises NotReadyError without a control token."""
    guarded = guard(token_of(settings), only_loopback_names=is_loopback(host))
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[json_errors, guarded])
    api.add_to(app)
    app.on_response_prepare.append(add_headers)
    return app


async def serve(
    settings: Settings,
    place: Binding | socket.socket,
    *,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    metrics_binding: Binding | None = None,
) -> None:
    """Serve until `stop`; on a listening socket of the caller no longer than until nobody has looked for some minutes.

    `ready` gets the URL once requests are answered. `metrics_binding`: where metrics are served; None: nowhere. The page itself needs
    no Kafka: requests do. Raises NotReadyError without a control token or if the port of the metrics is in use, and OSError if the
    other port is.
    """
    async with AsyncExitStack() as ends:
        listener = ends.enter_context(closing(bound(place) if isinstance(place, Binding) else place))
        following = Following(settings)
        ends.push_async_callback(following.close)
        api = Api(settings, following, document)
        app = application(settings, api, listener.getsockname()[0])
        metrics = HttpMetrics("page")
        metrics.count(app)
        metrics.gauge("polar_event_streams", "Open streams of events", ("role",), lambda: {"page": len(api.streams)})
        metrics.gauge(
            "polar_page_follows", "1 while the page reads Kafka", ("role",), lambda: {"page": following.is_open}
        )
        # A query of a client that has left is ended.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S, handler_cancellation=True)
        ends.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        if metrics_binding is not None:
            await ends.enter_async_context(serve_metrics(metrics, metrics_binding.host, metrics_binding.port))
        ready(url(listener))
        if isinstance(place, Binding):
            await stop.wait()
        else:
            following.count_down()
            await first_done(stop, following.abandoned)
