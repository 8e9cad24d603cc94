"""When what leaves: a request's answer, or its error, as the provider would send it.

An answer leaves whole, and only once it may (`proxy/call.py`). A stream's headers leave with it, or after 3 s, and keep-alives follow until
it is there. Until headers are out an error is an HTTP status, after that the dialect's in-stream error.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any, Protocol

import structlog
from aiohttp import web

from proxy.dialects.base import Dialect
from proxy.errors import Refusal, RefusalError

QUIET_S = 3.0
"""Longest silence of a stream that waits, its headers included: harnesses give up after 5 s without headers at the earliest."""
TAKEN_S = 60.0
"""For a harness to take its answer: one that stalls would hold its memory for ever."""
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
JSON = {"Content-Type": "application/json"}

log = structlog.get_logger(__name__)


class PendingReply(Protocol):
    """What a request waits for: a reply of this proxy (`proxy/session/reply.py`), or the way to another's (`proxy/peers/routing.py`)."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to leave as a stream."""
        ...

    @property
    def done(self) -> asyncio.Future[Any]:
        """When there is an answer, or the reason why there is none."""
        ...

    def join(self) -> None:
        """One more request waits."""
        ...

    def leave(self, *, delivered: bool) -> None:
        """A request ended: with the whole answer, or because its harness hung up."""
        ...

    def told(self, dialect: Dialect) -> bytes:
        """The answer as it leaves, once done. Raises RefusalError."""
        ...


async def respond(
    request: web.Request, dialect: Dialect, reply: PendingReply, *, whole: bool = False
) -> web.StreamResponse:
    """Answers one request, and leaves its reply when the harness hangs up. Raises while no header is out.

    `whole`: no header leaves before the answer, however long that takes.
    """
    reply.join()
    delivered = False
    try:
        opened = await _wait(request, dialect, reply, QUIET_S if reply.is_stream and not whole else None)
        try:
            body = reply.told(dialect)
        except Exception as fault:
            if opened is None:
                raise
            await opened.write(dialect.error_event(refused_by(fault, dialect)))
            return opened
        response = await _deliver(request, opened, body, EVENT_STREAM if reply.is_stream else JSON)
        delivered = True
        return response
    finally:
        reply.leave(delivered=delivered)


def refused_by(fault: Exception, dialect: Dialect) -> RefusalError:
    """What a harness is told in an answer's place; of a fault of ours the log says more."""
    if isinstance(fault, RefusalError):
        return fault
    # Never log.exception: renderers show locals, and these hold keys and prompts.
    told = "".join(traceback.format_exception(fault))
    log.error("request failed", action="request_failed", dialect=dialect.name, trace=told)
    return RefusalError(Refusal.UNAVAILABLE, "the proxy failed; try again")


async def _wait(
    request: web.Request, dialect: Dialect, reply: PendingReply, quiet_s: float | None
) -> web.StreamResponse | None:
    """Returns when the reply is done: a stream's response, if it had to be opened before."""
    opened: web.StreamResponse | None = None
    while not (await asyncio.wait([reply.done], timeout=quiet_s))[0]:
        if opened is None:
            opened = web.StreamResponse(headers=EVENT_STREAM)
            await opened.prepare(request)
        await opened.write(dialect.keep_alive)
    return opened


async def _deliver(
    request: web.Request, opened: web.StreamResponse | None, body: bytes, headers: dict[str, Any]
) -> web.StreamResponse:
    """Returns when the harness has the answer, but for what the kernel still holds. Raises ConnectionError where it doesn't take it."""
    try:
        async with asyncio.timeout(TAKEN_S):
            if opened is not None:
                await opened.write_eof(body)
                return opened
            # A stream that is there at once leaves as one body with its length: the same bytes, one write.
            response = web.Response(body=body, headers=headers)
            await response.prepare(request)
            await response.write_eof()
            return response
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(f"the answer was not taken within {TAKEN_S:g} s") from None
