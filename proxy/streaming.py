"""When a request's answer or error leaves, in its provider's form.

An answer leaves whole, and only once it may (`proxy/call.py`). A stream's headers leave with it, or after 3 s, and keep-alives follow until
the answer is there. Until headers are out an error is an HTTP status, after that the dialect's in-stream error.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from aiohttp import web

from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import Refusal, RefusalError

QUIET_S = 3.0
"""Longest silence of a stream that waits, its headers included: harnesses give up after 5 s without headers at the earliest."""
DELIVERY_S = 60.0
"""For a harness to read its answer: a harness that stalls would hold its memory for ever."""
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
JSON = {"Content-Type": "application/json"}

log = structlog.get_logger(__name__)


class PendingReply(Protocol):
    """A request's reply: calls of this proxy (`proxy/session/reply.py`), or the way to another (`proxy/peers/routing.py`)."""

    @property
    def done(self) -> asyncio.Future[Any]:
        """Done when there is an answer, or an error in its place."""

    def join(self) -> None:
        """One more request waits."""

    def leave(self, *, delivered: bool) -> None:
        """A request ended: with the whole answer, or without it."""

    def render(self, dialect: Dialect, request: ChatRequest) -> bytes:
        """The answer as it leaves, once done. Raises RefusalError."""


async def respond(
    http_request: web.Request,
    dialect: Dialect,
    request: ChatRequest,
    reply: PendingReply,
    refused: Callable[[RefusalError], None],
    *,
    whole: bool = False,
) -> web.StreamResponse:
    """Answers one request, and leaves its reply when the harness hangs up. Raises while no header is out; `refused` gets a later error.

    `whole`: no header leaves before the answer, however long that takes.
    """
    reply.join()
    delivered = False
    try:
        opened = await _wait(http_request, dialect, reply, QUIET_S if request.stream and not whole else None)
        try:
            body = reply.render(dialect, request)
        except Exception as fault:
            if opened is None:
                raise
            refusal = refusal_from(fault, dialect)
            refused(refusal)
            await opened.write(dialect.error_event(refusal))
            return opened
        response = await _deliver(http_request, opened, body, EVENT_STREAM if request.stream else JSON)
        delivered = True
        return response
    finally:
        reply.leave(delivered=delivered)


def refusal_from(fault: Exception, dialect: Dialect) -> RefusalError:
    """The error for the harness; a fault of ours is logged with its traceback."""
    if isinstance(fault, RefusalError):
        return fault
    # Never log.exception: renderers show locals, and these hold keys and prompts.
    trace = "".join(traceback.format_exception(fault))
    log.error("request failed", action="request_failed", dialect=dialect.name, trace=trace)
    return RefusalError(Refusal.UNAVAILABLE, "the proxy failed; try again")


async def _wait(
    http_request: web.Request, dialect: Dialect, reply: PendingReply, quiet_s: float | None
) -> web.StreamResponse | None:
    """Returns when the reply is done: a stream's response, if it had to be opened before."""
    opened: web.StreamResponse | None = None
    while not (await asyncio.wait([reply.done], timeout=quiet_s))[0]:
        if opened is None:
            opened = web.StreamResponse(headers=EVENT_STREAM)
            await opened.prepare(http_request)
        await opened.write(dialect.keep_alive)
    return opened


async def _deliver(
    http_request: web.Request, opened: web.StreamResponse | None, body: bytes, headers: dict[str, str]
) -> web.StreamResponse:
    """Returns when the harness has the answer, except for what the kernel still buffers. Raises ConnectionError if it doesn't read it."""
    try:
        async with asyncio.timeout(DELIVERY_S):
            if opened is not None:
                await opened.write_eof(body)
                return opened
            # A stream that is there at once leaves as one body with its length: the same bytes, one write.
            response = web.Response(body=body, headers=headers)
            await response.prepare(http_request)
            await response.write_eof()
            return response
    except TimeoutError:
        if http_request.transport is not None:
            http_request.transport.abort()
        raise ConnectionResetError(f"the answer was not taken within {DELIVERY_S:g} s") from None
