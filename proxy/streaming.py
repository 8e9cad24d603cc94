"""When what leaves: a call's answer, or its error, as the provider would send it.

An answer leaves whole, and only once it may (`proxy/call.py`). A stream's headers leave with it, or after 3 s, and keep-alives follow until
it is there. Until headers are out an error is an HTTP status, after that the dialect's in-stream error.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from proxy.call import Call, Pipeline, refusal_of_ending
from proxy.chat import Answer
from proxy.dialects.base import Dialect
from proxy.errors import Refused

QUIET_S = 3.0
"""Longest silence of a stream that waits, its headers included: harnesses give up after 5 s without headers at the earliest."""
EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
JSON = {"Content-Type": "application/json"}


async def respond(request: web.Request, dialect: Dialect, pipeline: Pipeline, call: Call) -> web.StreamResponse:
    """Answers one call, and ends it when the harness hangs up. Raises Refused while no header is out."""
    try:
        opened = await _wait(request, dialect, call)
    except (asyncio.CancelledError, ConnectionError):
        call.end("hung_up")
        raise
    told = refusal_of_ending(call.ended or "stopped") if call.answer.cancelled() else call.answer.result()
    if isinstance(told, Refused):
        if opened is None:
            raise told
        await opened.write(dialect.error_event(told))
        return opened
    try:
        return await _deliver(request, opened, dialect, call, told)
    except (asyncio.CancelledError, ConnectionError):
        pipeline.undelivered(call)
        raise


async def _wait(request: web.Request, dialect: Dialect, call: Call) -> web.StreamResponse | None:
    """Returns when the call is done: a stream's response, if it had to be opened before."""
    opened: web.StreamResponse | None = None
    quiet_s = QUIET_S if call.asked.request.stream else None
    while not (await asyncio.wait([call.answer], timeout=quiet_s))[0]:
        if opened is None:
            opened = web.StreamResponse(headers=EVENT_STREAM)
            await opened.prepare(request)
        await opened.write(dialect.keep_alive)
    return opened


async def _deliver(
    request: web.Request, opened: web.StreamResponse | None, dialect: Dialect, call: Call, answer: Answer
) -> web.StreamResponse:
    asked = call.asked
    form = dialect.stream if asked.request.stream else dialect.body
    body = form(asked.call_id, int(asked.received_at), asked.request, answer)
    if opened is not None:
        await opened.write_eof(body)
        return opened
    # A stream that is there at once leaves as one body with its length: the same bytes, one write.
    response = web.Response(body=body, headers=EVENT_STREAM if asked.request.stream else JSON)
    await response.prepare(request)
    await response.write_eof()
    return response
