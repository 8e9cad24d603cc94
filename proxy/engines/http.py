"""JSON over HTTP to an inference server: deadlines, and what each way of failing is called.

Codes of EngineError: `unreachable`, `cut`, `timeout`, `overloaded`, `server_error`, `context_length`, `refused` (the request is at fault),
`misconfigured` (we are), `too_large`.
"""

from __future__ import annotations

import asyncio
import re

import msgspec

from proxy.engines.connection import Connections, Dropped, Unreachable
from proxy.engines.overflow import is_overflow, numbers_of
from proxy.engines.response import MAX_BODY_BYTES, Broken, TooLarge
from proxy.errors import OVERLOAD, EngineError

SESSION_HEADER = "X-Session-ID"
"""By which vLLM, and routers before it, keep a session where its prefix is cached."""
SHOWN_CHARS = 500
SECONDS = re.compile(r"[0-9]{1,6}")
"""Of a Retry-After; its other form, a date, no inference server sends."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of bytes that are no JSON, are text in no UTF-8, or nest without end."""


class _Error(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error | None = None
    message: str = ""


_errors = msgspec.json.Decoder(_ErrorBody)


class EngineHttp:
    """One server."""

    def __init__(self, base_url: str, *, deadline_s: float) -> None:
        """`deadline_s` is for a whole answer."""
        self._connections = Connections(base_url.rstrip("/").removesuffix("/v1"))
        self._deadline_s = deadline_s

    def stop(self) -> None:
        """Closes connections; calls in flight fail."""
        self._connections.close()

    async def post(self, path: str, body: bytes, session_id: str | None = None) -> bytes:
        """The body of a 200 answer; `session_id` goes as a header, for routes whose bodies have no place for it. Raises EngineError."""
        headers = "" if session_id is None else f"{SESSION_HEADER}: {session_id}\r\n"
        try:
            response = await self._connections.ask("POST", path, body, self._deadline_s, headers)
        except Unreachable as error:
            raise EngineError("unreachable", str(error), retryable=True) from None
        except TimeoutError:
            raise EngineError("timeout", f"no whole answer within {self._deadline_s:g} s") from None
        except Dropped:
            raise EngineError("cut", "the engine closed the connection before its answer", retryable=True) from None
        except Broken as error:
            raise EngineError("cut", f"the engine's answer broke off ({error})", retryable=True) from None
        except TooLarge:
            raise EngineError("too_large", f"the engine's answer is over {MAX_BODY_BYTES} bytes") from None
        if response.status == 200:
            return response.body
        raise fault_of(response.status, response.headers.get("retry-after"), response.body)

    async def answers(self, path: str, deadline_s: float) -> bool:
        """Whether a GET is answered in time, and not by an error of the server's. One that has no such path is there all the same."""
        try:
            async with asyncio.timeout(deadline_s):
                response = await self._connections.ask("GET", path, b"", deadline_s)
        except (Unreachable, TimeoutError, Dropped, Broken, TooLarge):
            return False
        return response.status < 500


def fault_of(status: int, retry_after: str | None, body: bytes) -> EngineError:
    """What a status other than 200 means."""
    said = _said(body)
    wait = int(retry_after) if retry_after is not None and SECONDS.fullmatch(retry_after) else None
    if status in OVERLOAD:
        return EngineError("overloaded", said, status=status, retryable=True, retry_after_s=wait)
    if status >= 500:
        return EngineError("server_error", said, status=status, retryable=True, retry_after_s=wait)
    if status in (400, 413, 422):
        if is_overflow(said):
            return EngineError("context_length", said, status=status, context=numbers_of(said))
        return EngineError("refused", said, status=status)
    return EngineError("misconfigured", said, status=status)


def _said(body: bytes) -> str:
    """The server's own words, cut short."""
    try:
        told = _errors.decode(body)
    except UNREADABLE:
        return "(no words that we understand)"
    return (told.error.message if told.error else told.message)[:SHOWN_CHARS]
