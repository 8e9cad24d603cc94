"""Keeps the bytes of malformed requests out of aiohttp's log lines and answers.

For a request that it can't parse aiohttp quotes bytes of the path or of a header, and these may hold the key. Its log line and answer name
only the kind of error.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from aiohttp import web


class _WithoutBytes(logging.Filter):
    """Replaces an exception by its name."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[0] if record.exc_info else None
        if error is not None:
            record.msg, record.args = f"{record.getMessage()}: {error.__name__}", ()
            record.exc_info = None
        return True


LOGGER = logging.getLogger(__name__)
LOGGER.addFilter(_WithoutBytes())


class Runner(web.AppRunner):
    """Runs an application on connections that quote no bytes of a request."""

    __slots__ = ()

    def __init__(self, app: web.Application, **kwargs: Any) -> None:
        """`kwargs` as for AppRunner."""
        super().__init__(app, logger=LOGGER, **kwargs)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(made.request_handler, request_factory=made.request_factory, **self._kwargs)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it holds the bytes
    ) -> web.StreamResponse:
        return super().handle_error(request, status, exc, HTTPStatus(status).phrase)
