"""JSON requests over HTTP to an inference server: deadlines, and the EngineError for each kind of failure.

Codes of EngineError: `unreachable`, `cut`, `timeout`, `overloaded`, `server_error`, `context_length`, `refused` (the request is at fault),
`misconfigured` (the proxy's settings are), `too_large`.
"""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec

from proxy.engines.api_key import ApiKey
from proxy.engines.connection import ConnectionDroppedError, ConnectionPool, UnreachableError
from proxy.engines.response import MAX_BODY_BYTES, AnswerTooLargeError, BrokenAnswerError, NoAnswerError, Response
from proxy.errors import OVERLOAD, EngineError

NEEDS_KEY = "set api_key_file in the engine's section of polar.toml, or --engine-key-file"
SESSION_HEADER = "X-Session-ID"
"""vLLM, and routers before it, keep a session at the server that has its prefix cached by this header."""
MESSAGE_CHARS = 500
"""A server's error may repeat the whole prompt; its beginning names the reason."""
SECONDS = re.compile(r"[0-9]{1,6}")
"""A Retry-After in seconds; no inference server sends its other form, a date."""
# A prompt that doesn't fit, in the words of vLLM and SGLang. They change with releases, and no code beside them identifies the error.
OVERFLOW = re.compile(
    r"maximum context length|context length is only|context_length_exceeded|longer than the maximum model length"
    r"|cannot be greater than max_model_len|longer than the model's context length",
    re.IGNORECASE,
)
LIMIT = re.compile(
    r"(?:context length is(?: only)? |maximum model length of |context length \()(\d{1,9})", re.IGNORECASE
)
PROMPT = (
    re.compile(r"(?<!\d)(?<!upper bound for )(\d{1,9}) input tokens"),
    re.compile(r"(?<!\d)(\d{1,9})(?: tokens)? in the messages"),
    re.compile(r"prompt \(length (\d{1,9})\)"),
    re.compile(r"input \((\d{1,9}) tokens\)"),
)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of msgspec for bytes that are not JSON, not UTF-8, or nested too deeply."""


class _Error(msgspec.Struct):
    message: str = ""


class _ErrorBody(msgspec.Struct):
    error: _Error | None = None
    message: str = ""


_errors = msgspec.json.Decoder(_ErrorBody)
T = TypeVar("T")


class EngineHttp:
    """An HTTP client of one inference server."""

    def __init__(self, base_url: str, *, deadline_s: float, api_key: ApiKey | None = None) -> None:
        """`deadline_s` is the time for a whole answer."""
        self._connections = ConnectionPool(base_url, api_key)
        self._deadline_s = deadline_s

    @property
    def closings(self) -> int:
        """Number of kept connections that the server has closed."""
        return self._connections.closings

    def stop(self) -> None:
        """Close connections; calls in flight fail."""
        self._connections.close()

    async def post(self, path: str, body: bytes, session_id: str | None = None) -> bytes:
        """The body of a 200 answer. `session_id` is sent as a header, for routes whose bodies have no field for it. Raises EngineError."""
        headers = "" if session_id is None else f"{SESSION_HEADER}: {session_id}\r\n"
        response = await self._request("POST", path, body, self._deadline_s, headers)
        if response.status == 200:
            return response.body
        raise fault_of(response.status, response.headers.get("retry-after"), response.body)

    async def get(self, path: str, deadline_s: float) -> bytes | None:
        """The body of a 200 answer; None for any other status. Raises EngineError if there is no answer."""
        response = await self._request("GET", path, b"", deadline_s)
        return response.body if response.status == 200 else None

    async def _request(self, method: str, path: str, body: bytes, deadline_s: float, headers: str = "") -> Response:
        """The whole answer. Raises EngineError if there is none."""
        try:
            return await self._connections.request(method, path, body, deadline_s, headers)
        except UnreachableError as error:
            raise EngineError("unreachable", str(error), retryable=True) from None
        except TimeoutError:
            raise EngineError("timeout", f"no whole answer within {deadline_s:g} s") from None
        except ConnectionDroppedError:
            raise EngineError("cut", "the engine closed the connection before its answer", retryable=True) from None
        except BrokenAnswerError as error:
            raise EngineError("cut", f"the engine's answer broke off ({error})", retryable=True) from None
        except AnswerTooLargeError:
            raise EngineError("too_large", f"the engine's answer is over {MAX_BODY_BYTES} bytes") from None

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
    if status in (401, 403):
        message = f"the server refuses the proxy's API key ({NEEDS_KEY}): {message}"
    return EngineError("misconfigured", message, status=status)


def _message(body: bytes) -> str:
    """The server's error message, shortened."""
    try:
        answer = _errors.decode(body)
    except UNREADABLE:
        return "(no readable message)"
    return (answer.error.message if answer.error else answer.message)[:MESSAGE_CHARS]


def is_overflow(message: str) -> bool:
    """True for the error that a prompt, or a prompt and the requested answer, doesn't fit."""
    return OVERFLOW.search(message) is not None


def overflow_numbers(message: str) -> tuple[int, int] | None:
    """The prompt's tokens and the limit, by which harnesses shorten their history.

    None unless the message has both and the prompt alone doesn't fit. A vLLM that stops counting at the limit reports the least that the
    prompt can have ("at least 4097").
    """
    limit = LIMIT.search(message)
    prompt = next((found for pattern in PROMPT if (found := pattern.search(message))), None)
    if limit is None or prompt is None or int(prompt[1]) <= int(limit[1]):
        return None
    return int(prompt[1]), int(limit[1])


def decoded(decoder: msgspec.json.Decoder[T], body: bytes, content: str) -> T:
    """A body as the decoder's type. Raises EngineError `malformed`, naming the expected content."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise EngineError("malformed", f"the answer is no {content}: {error}") from None
