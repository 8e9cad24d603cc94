"""The metrics of a process that serves HTTP (`polar rest`, `polar page`): its requests and their duration.

Labels are few: a request's route as it is declared, never its path.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import Counter, Histogram

from consumers.metrics import Metrics

BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
NO_ROUTE = "none"
"""Label of requests to a path that isn't served."""
FAILED = 500
LEFT = "left"
"""Label in place of a status: the client hung up before the answer was ready."""


class HttpMetrics(Metrics):
    """The metrics of one process that serves HTTP."""

    def __init__(self, role: str) -> None:
        """`role`: `rest` or `page`."""
        super().__init__(unready_reason=lambda: None)  # what it needs is looked for at each request
        self._role = role
        requests, seconds = "HTTP requests by route and status", "Time until a request was answered, streams left out"
        self._requests = Counter("polar_http_requests", requests, ["role", "route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "polar_http_request_seconds", seconds, ["role"], buckets=BUCKETS_S, registry=self.registry
        ).labels(role)

    def count(self, app: web.Application) -> None:
        """Count the requests of an application, before it starts. Streams count when they end."""
        app.middlewares.insert(0, web.middleware(partial(_counted, self)))

    def answered(self, route: str, status: str, duration_s: float | None) -> None:
        """Count a request. `duration_s`: None for a stream."""
        self._requests.labels(self._role, route, status).inc()
        if duration_s is not None:
            self._seconds.observe(duration_s)


async def _counted(metrics: HttpMetrics, request: web.Request, handler: Handler) -> web.StreamResponse:
    began = time.monotonic()
    resource = request.match_info.route.resource
    route = NO_ROUTE if resource is None else resource.canonical
    status, is_stream = str(FAILED), False
    try:
        response = await handler(request)
        status, is_stream = str(response.status), response.content_type == "text/event-stream"
        return response
    except web.HTTPException as error:
        status = str(error.status)
        raise
    except (ConnectionError, asyncio.CancelledError):
        status = LEFT
        raise
    finally:
        metrics.answered(route, status, None if is_stream or status == LEFT else time.monotonic() - began)
