"""Runs the page until a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

from aiohttp import web

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


def application(settings: Settings, following: Following, host: str) -> web.Application:
    """The application of a page that listens on the address `host`. Raises NotReadyError without a control token."""
    guarded = guard(token_of(settings), only_loopback_names=is_loopback(host))
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[json_errors, guarded])
    Api(settings, following, document).add_to(app)
    app.on_response_prepare.append(add_headers)
    return app


async def serve(
    settings: Settings, place: Binding | socket.socket, *, stop: asyncio.Event, ready: Callable[[str], None]
) -> None:
    """Serve until `stop`; on a listening socket of the caller no longer than until nobody has looked for some minutes.

    `ready` gets the URL once requests are answered. The page itself needs no Kafka: requests do. Raises NotReadyError without a
    control token, and OSError if the port is in use.
    """
    async with AsyncExitStack() as ends:
        listener = ends.enter_context(closing(bound(place) if isinstance(place, Binding) else place))
        following = Following(settings)
        ends.push_async_callback(following.close)
        app = application(settings, following, listener.getsockname()[0])
        # A query of a client that has left is ended.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S, handler_cancellation=True)
        ends.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        ready(url(listener))
        if isinstance(place, Binding):
            await stop.wait()
        else:
            following.count_down()
            await first_done(stop, following.abandoned)
