"""JSON requests over HTTP to an inference server: deadlines, and the EngineError for each kind of failure.

Codes of EngineError: `unreachable`, `cut`, `timeout`, `overloaded`, `server_error`, `context_length`, `refused` (the request is at fault),
`misconfigured` (the proxy's settings are), `too_large`.
"""

from __future__ import annotations

import asyncio
import re

import msgspec

from proxy.engines.connection import ConnectionDroppedError, ConnectionPool, UnreachableError
from proxy.engines.overflow import is_overflow, overflow_numbers
from proxy.engines.response import MAX_BODY_BYTES, AnswerTooLargeError, BrokenAnswerError, NoAnswerError
from proxy.errors import OVERLOAD, EngineError

SESSION_HEADER = "X-Session-ID"
"""vLLM, and routers before it, keep a session at the server that has its prefix cached by this header."""
MESSAGE_CHARS = 500
"""A server's error may repeat the whole prompt; its beginning names the reason."""
SECONDS = re.compile(r"[0-9]{1,6}")
"""A Retry-After in seconds; no inference server sends its other form, a date."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not JSON, not UTF-8, or nested too deeply."""


class _Error(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error | None = None
    message: str = ""


_errors = msgspec.json.Decoder(_ErrorBody)


class EngineHttp:
    """An HTTP client of one inference server."""

    def __init__(self, base_url: str, *, deadline_s: float) -> None:
        """`deadline_s` is the time for a whole answer."""
        self._connections = ConnectionPool(base_url)
        self._deadline_s = deadline_s

    def stop(self) -> None:
        """Close connections; calls in flight fail."""
        self._connections.close()

    async def post(self, path: str, body: bytes, session_id: str | None = None) -> bytes:
        """The body of a 200 answer. `session_id` is sent as a header, for routes whose bodies have no field for it. Raises EngineError."""
        headers = "" if session_id is None else f"{SESSION_HEADER}: {session_id}\r\n"
        try:
            response = await self._connections.request("POST", path, body, self._deadline_s, headers)
        except UnreachableError as error:
            raise EngineError("unreachable", str(error), retryable=True) from None
        except TimeoutError:
            raise EngineError("timeout", f"no whole answer within {self._deadline_s:g} s") from None
        except ConnectionDroppedError:
            raise EngineError("cut", "the engine closed the connection before its answer", retryable=True) from None
        except BrokenAnswerError as error:
            raise EngineError("cut", f"the engine's answer broke off ({error})", retryable=True) from None
        except AnswerTooLargeError:
            raise EngineError("too_large", f"the engine's answer is over {MAX_BODY_BYTES} bytes") from None
        if response.status == 200:
            return response.body
        raise fault_of(response.status, response.headers.get("retry-after"), response.body)

    async def is_answered(self, path: str, deadline_s: float) -> bool:
        """True if a GET is answered in time and without a server error; a 404 shows that the server is there."""
        try:
            async with asyncio.timeout(deadline_s):
                response = await self._connections.request("GET", path, b"", deadline_s)
        except (UnreachableError, TimeoutError, NoAnswerError):
            return False
        return response.status < 500


def fault_of(status: int, retry_after: str | None, body: bytes) -> EngineError:
    """The fault that an HTTP status other than 200 stands for."""
    message = _message(body)
    wait = int(retry_after) if retry_after is not None and SECONDS.fullmatch(retry_after) else None
    if status in OVERLOAD:
        return EngineError("overloaded", message, status=status, retryable=True, retry_after_s=wait)
    if status >= 500:
        return EngineError("server_error", message, status=status, retryable=True, retry_after_s=wait)
    if status in (400, 413, 422):
        if is_overflow(message):
            return EngineError("context_length", message, status=status, context=overflow_numbers(message))
        return EngineError("refused", message, status=status)
    return EngineError("misconfigured", message, status=status)


def _message(body: bytes) -> str:
    """The server's error message, shortened."""
    try:
        answer = _errors.decode(body)
    except UNREADABLE:
        return "(no readable message)"
    return (answer.error.message if answer.error else answer.message)[:MESSAGE_CHARS]
