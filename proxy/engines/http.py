"""JSON over HTTP to an inference server: connections, deadlines, and what each way of failing is called.

Codes of EngineFault: `unreachable`, `cut`, `timeout`, `overloaded`, `server_error`, `context_length`, `refused` (the request is at fault),
`misconfigured` (we are), `too_large`.
"""

from __future__ import annotations

import re

import aiohttp
import msgspec

from proxy.engines.overflow import is_overflow, numbers_of
from proxy.errors import OVERLOAD, EngineFault

# Servers drop idle connections after some seconds; to let go of them sooner costs a handshake and spares a retry.
KEEPALIVE_S = 2.0
CONNECT_S = 5.0
MAX_ANSWER_BYTES = 128 * 1024 * 1024
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
    """A pool of connections to one server."""

    def __init__(self, base_url: str, *, deadline_s: float) -> None:
        self._base = base_url.rstrip("/").removesuffix("/v1")
        self._timeout = aiohttp.ClientTimeout(total=deadline_s, sock_connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the pool."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        # What a browser would want costs a tenth of a millisecond a call.
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "User-Agent"),
        )

    async def stop(self) -> None:
        """Closes the pool."""
        if self._session is not None:
            await self._session.close()

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 200 answer. Raises EngineFault."""
        try:
            return await self._post(path, body)
        except aiohttp.ServerDisconnectedError:
            # A kept connection that the server dropped as we wrote to it: nothing was sampled.
            return await self._told(path, body)

    async def answers(self, path: str, deadline_s: float) -> bool:
        """Whether a GET is answered in time, and not by an error of the server's. One that has no such path is there all the same."""
        assert self._session is not None, "started"
        deadline = aiohttp.ClientTimeout(total=deadline_s)
        try:
            async with self._session.get(self._base + path, timeout=deadline, allow_redirects=False) as response:
                return response.status < 500
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _told(self, path: str, body: bytes) -> bytes:
        try:
            return await self._post(path, body)
        except aiohttp.ServerDisconnectedError:
            raise EngineFault("cut", "the engine closed the connection before its answer", retryable=True) from None

    async def _post(self, path: str, body: bytes) -> bytes:
        assert self._session is not None, "started"
        try:
            async with self._session.post(
                self._base + path, data=body, timeout=self._timeout, allow_redirects=False
            ) as response:
                told = await _read(response)
                if response.status == 200:
                    return told
                raise fault_of(response.status, response.headers.get("Retry-After"), told)
        except aiohttp.ClientConnectorError as error:
            raise EngineFault("unreachable", f"no connection to the engine: {error.os_error}", retryable=True) from None
        except aiohttp.ConnectionTimeoutError:
            raise EngineFault("unreachable", f"no connection within {CONNECT_S:g} s", retryable=True) from None
        except TimeoutError:
            raise EngineFault("timeout", f"no whole answer within {self._timeout.total:g} s") from None
        except aiohttp.ServerDisconnectedError:
            raise
        except aiohttp.ClientError as error:
            raise EngineFault(
                "cut", f"the engine's answer broke off ({type(error).__name__})", retryable=True
            ) from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    # Most answers come whole in one piece; joining is for the others.
    pieces = []
    size = 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise EngineFault("too_large", f"the engine's answer is over {MAX_ANSWER_BYTES} bytes")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def fault_of(status: int, retry_after: str | None, body: bytes) -> EngineFault:
    """What a status other than 200 means."""
    said = _said(body)
    wait = int(retry_after) if retry_after is not None and SECONDS.fullmatch(retry_after) else None
    if status in OVERLOAD:
        return EngineFault("overloaded", said, status=status, retryable=True, retry_after_s=wait)
    if status >= 500:
        return EngineFault("server_error", said, status=status, retryable=True, retry_after_s=wait)
    if status in (400, 413, 422):
        if is_overflow(said):
            return EngineFault("context_length", said, status=status, context=numbers_of(said))
        return EngineFault("refused", said, status=status)
    return EngineFault("misconfigured", said, status=status)


def _said(body: bytes) -> str:
    """The server's own words, cut short."""
    try:
        told = _errors.decode(body)
    except UNREADABLE:
        return "(no words that we understand)"
    return (told.error.message if told.error else told.message)[:SHOWN_CHARS]
