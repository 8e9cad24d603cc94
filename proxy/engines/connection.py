"""Kept HTTP/1.1 connections to one inference server.

The client is our own because aiohttp's costs 50 to 60 µs more CPU a call, a tenth of a proxied call under load (docs/decisions.md, 91;
measured by `benchmarks/http_client.py`). It does what an inference server needs: one request at a time on a connection, no redirects, no
cookies, no compression. Invariant: a connection is used again only if its last answer was whole and nothing followed it. The caller sets
deadlines.
"""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import urlsplit

from proxy.engines.api_key import ApiKey
from proxy.engines.response import BrokenAnswerError, NoAnswerError, Response, ResponseReader

CONNECT_S = 5.0
"""A host that takes longer is down: connecting within a data centre takes milliseconds."""
KEEPALIVE_S = 2.0
"""Servers drop idle connections after some seconds (uvicorn after 5); closing them earlier costs a handshake and saves a retry."""


class ConnectionDroppedError(NoAnswerError):
    """The server closed the connection before the first byte of its answer: nothing was sampled."""


class UnreachableError(Exception):
    """No connection was made; the message says why."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._reader: ResponseReader
        self._response: asyncio.Future[Response] | None = None
        """None while no request is under way."""
        self.idle_since = 0.0
        """On the loop's clock."""

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    async def request(self, request: bytes, deadline_s: float) -> Response:
        """Send a request and return the whole answer. Raises TimeoutError, NoAnswerError.

        An error, a cancellation, or an answer that forbids reuse closes the connection.
        """
        loop = asyncio.get_running_loop()
        self._reader, self._response = ResponseReader(), loop.create_future()
        timer = loop.call_later(deadline_s, self._fail, TimeoutError())
        self._transport.write(request)
        is_kept = False
        try:
            response = await self._response
            is_kept = response.is_kept
            return response
        finally:
            timer.cancel()
            self._response = None
            self._reader.release()
            if not is_kept:
                self.close()

    def close(self) -> None:
        """Close the connection; a request under way fails."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's doesn't inherit from it

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self.close()  # bytes that answer no request
            return
        try:
            response = self._reader.feed(data)
        except NoAnswerError as error:
            self._fail(error)
            return
        if response is not None:
            self._response.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is None or self._response.done():
            return
        if not self._reader.has_begun:
            self._fail(ConnectionDroppedError("the connection was closed before the answer"))
        elif exc is not None:
            self._fail(BrokenAnswerError(type(exc).__name__))
        else:
            try:
                self._response.set_result(self._reader.eof())
            except BrokenAnswerError as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)


class ConnectionPool:
    """Connections to one server, as many as there are requests at once; the most recently used is taken first."""

    def __init__(self, url: str, api_key: ApiKey | None = None) -> None:
        """`url` is the server's base URL, with or without `/v1`; each request carries the key as a bearer token."""
        parts = urlsplit(url.rstrip("/").removesuffix("/v1"))
        is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_tls else 80)
        self._tls = True if is_tls else None
        self._path = parts.path
        self._address = parts.netloc.rpartition("@")[2]
        self._fixed = f" HTTP/1.1\r\nHost: {self._address}\r\nAccept-Encoding: identity\r\n"
        self._api_key = api_key
        self._idle: list[Connection] = []
        """The longest idle first."""
        self._busy: set[Connection] = set()
        self.closings = 0
        """Number of kept connections that the server has closed. They are counted before a new connection is made, so those to a process
        that has ended count before the next process answers."""

    async def request(self, method: str, path: str, body: bytes, deadline_s: float, headers: str = "") -> Response:
        """The whole answer to a request with a JSON body or none; `headers` are lines, each with its line end.

        A request on a kept connection that the server drops is sent once more, on a new one. Raises UnreachableError, TimeoutError,
        NoAnswerError.
        """
        content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n" if body else "\r\n"
        key = "" if self._api_key is None else f"Authorization: Bearer {self._api_key.value}\r\n"
        request = f"{method} {self._path}{path}{self._fixed}{key}{headers}{content}".encode() + body
        kept = self._kept()
        if kept is not None:
            try:
                return await self._send(kept, request, deadline_s)
            except ConnectionDroppedError:  # as we wrote to it
                self.closings += 1
        return await self._send(await self._new(), request, deadline_s)

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle = []

    async def _send(self, connection: Connection, request: bytes, deadline_s: float) -> Response:
        self._busy.add(connection)
        try:
            response = await connection.request(request, deadline_s)
        finally:
            self._busy.discard(connection)
        if response.is_kept:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return response

    def _kept(self) -> Connection | None:
        """The most recently used open connection; those idle for more than KEEPALIVE_S are closed."""
        earliest = asyncio.get_running_loop().time() - KEEPALIVE_S
        while self._idle and self._idle[0].idle_since < earliest:
            expired = self._idle.pop(0)
            self.closings += not expired.is_open
            expired.close()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            self.closings += 1
        return None

    async def _new(self) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise UnreachableError(f"no connection to the engine at {self._address} within {CONNECT_S:g} s") from None
        except OSError as error:
            raise UnreachableError(f"no connection to the engine at {self._address}: {error}") from None
        return connection
