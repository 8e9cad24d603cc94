"""Runs the routes of `api.py` over one copy of the coordinator's table, until a signal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path

from aiohttp import web

from consumers.metrics_http import serve_metrics
from polar.client import Client
from polar.http_metrics import HttpMetrics
from polar.rest.api import RestApi
from polar.rest.event_stream import EventBus
from polar.sessions import control_token
from proxy.addresses import Binding, bound, url
from topics import sessions
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.types.errors import NotReadyError
from topics.waiting.first_done import first_done

STOP_S = 20.0
"""For requests in progress when the process stops: a callback takes at most 10 s."""


async def serve(
    settings: Settings,
    binding: Binding,
    *,
    advertise: str | None,
    files: Path | None,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    metrics_binding: Binding | None = None,
) -> None:
    """Serve until `stop`. `ready` gets the URL once requests are answered. `metrics_binding`: where metrics are served; None: nowhere.

    Raises NotReadyError without Kafka or a control token, or if the port of the metrics is in use, and OSError if the other port is.
    """
    if settings.control_token_file is None:
        raise NotReadyError("polar rest needs the control token: name its file with POLAR_CONTROL_TOKEN_FILE")
    token = control_token(settings.control_token_file)
    bus = EventBus()
    changes = Follower(settings, sessions.TOPIC, bus.on_row, since=Since.END, committed=True)
    async with AsyncExitStack() as ends:
        listener = ends.enter_context(closing(bound(binding)))
        table = await ends.enter_async_context(Client(settings).table())
        ends.push_async_callback(changes.stop)
        await changes.start()
        api = RestApi(settings, table, bus, base_url=advertise or url(listener), files=files)
        ends.push_async_callback(api.close)
        app = api.application(token)
        metrics = HttpMetrics("rest")
        metrics.count(app)
        metrics.gauge("polar_event_streams", "Open streams of events", ("role",), lambda: {"rest": len(api.streams)})
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S)
        ends.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        if metrics_binding is not None:
            await ends.enter_async_context(serve_metrics(metrics, metrics_binding.host, metrics_binding.port))
        ready(url(listener))
        await first_done(stop, changes.failed, table.until(lambda: False, None))
