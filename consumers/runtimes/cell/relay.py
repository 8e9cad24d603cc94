"""The way from a cell to the model: HTTP/1.1 on a socket inside, led to one URL, with the session's own key.

A program in the cell has no key. Whatever credentials its requests carry, the relay puts this session's key in their place, so the socket
answers for one claim alone. Each connection from the cell is led on over one of its own to the proxy. Requests are read, and written anew
(`rewritten`, `http_requests.py`); answers pass as they come, byte for byte, and are read only to know where each ends.

What a client sees is what the proxy answers; the relay itself answers 400 or 431 to a request that it doesn't lead on, 502 if the
proxy can't be reached or drops a request without an answer, and 503 to too many connections (`connections.py`). A client that hangs up
ends its calls at the proxy. WebSockets aren't served: an Upgrade isn't led on, and the proxy answers 426 on the path where Codex tries one.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from consumers.runtimes.cell.connections import CONNECT_S, CellConnection, Connections, Outer, cause_of, serving
from consumers.runtimes.cell.http_requests import RequestHead, RequestRefusedError, bad_request

IDLE_S = 60.0
"""Without a request: less than the 75 s after which the proxy closes a connection, so that no request meets a closing one."""
SILENT_S = 3600.0
"""Without a byte while an answer is awaited: the proxy's longest call takes 3,300 s (`proxy/request_limits.py`)."""
PIPELINED = 64
"""Requests on one connection that await their answers: clients that pipeline at all send a few."""
KEY_HEADER = b"X-Polar-Key"
"""The proxy's own header for keys (`proxy/session_key.py`)."""
NOT_SERVED = frozenset({b"CONNECT", b"TRACE", b"TRACK"})
"""CONNECT asks for another host. A server before the proxy might answer TRACE with the request, and so with the key."""
OWN_HEADERS = b"x-polar-"
"""Headers between proxies, which no client sends."""
KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"})
"""Where providers' clients send their key. Each keeps its name: the proxy tells Google's clients by theirs."""
KEY_IN_QUERY = b"key"
KEYS_IN_PATH = re.compile(rb"(?:/(?:s|%73)/[^/]+)+(?=/|\Z)")
"""The proxy takes a key in front of a path, `/s/<key>/v1/messages`, and prefers it; it also decodes the path."""
PATH = re.compile(rb"/(?!/)[!\"$-\[\]-~]*")
"""A target that begins with one slash, without `#` and backslash. `//host/…` could be read as another host."""
DOT_SEGMENT = re.compile(rb"(?:/|%2f)(?:\.|%2e){1,2}(?=/|%2f|\Z)", re.IGNORECASE)
"""A server before the proxy could resolve it, and leave the base URL's path."""
HEADER_VALUE = re.compile(r"[!-~]+")

log = structlog.get_logger(__name__)


class Destination:
    """The base URL that all requests are led to, and the key that they carry."""

    def __init__(self, url: str, key: str) -> None:
        """`url` is http or https, perhaps with a path. Raises ValueError, without the key."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ValueError(f"proxy_url: expected http:// or https:// with a host, and perhaps a path; got {url!r}")
        if not HEADER_VALUE.fullmatch(key):
            raise ValueError("key: expected printable ASCII without spaces")
        self.url = url
        self.host = parts.hostname
        self.tls = _tls() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self.tls else 80)
        self.netloc = parts.netloc.encode("ascii")
        self.path = parts.path.rstrip("/").encode("ascii")
        self.key = key.encode("ascii")
        self.is_reached = True
        """The last connection was made. Only changes are logged: a program in a cell may try without end."""


def rewritten(head: RequestHead, to: Destination) -> bytes:
    """A request's head as it is led on. Raises RequestRefusedError.

    Credentials are replaced; everything else of method, target and headers stays as it is, byte for byte, except headers of one hop.
    """
    if head.method in NOT_SERVED:
        raise bad_request(f"{head.method.decode()} isn't served here: this address leads to the model only")
    # A HEAD's answer has no body whatever its head says: it is the connection's last, so that its end is known.
    is_last = head.is_last or head.method == b"HEAD"
    lines = [b"%b %b%b HTTP/%b\r\nHost: %b\r\n" % (head.method, to.path, _target(head.target), head.version, to.netloc)]
    has_key = False
    for name, line in head.headers:
        if name in KEY_HEADERS:
            scheme = b"Bearer " if name == b"authorization" else b""
            lines.append(b"%b: %b%b\r\n" % (name, scheme, to.key))
            has_key = True
        elif not name.startswith(OWN_HEADERS):
            lines.append(line)
    if not has_key:
        lines.append(b"%b: %b\r\n" % (KEY_HEADER, to.key))
    if is_last:
        lines.append(b"Connection: close\r\n")
    elif head.version == b"1.0":
        lines.append(b"Connection: keep-alive\r\n")
    lines += (head.framing(), b"\r\n")
    return b"".join(lines)


def _target(target: bytes) -> bytes:
    """A request's path and query, without keys. Raises RequestRefusedError for anything but a path."""
    path, mark, query = target.partition(b"?")
    if in_path := KEYS_IN_PATH.match(path):
        path = path[in_path.end() :] or b"/"
    if mark and KEY_IN_QUERY in unquote_to_bytes(query):
        pairs = query.split(b"&")
        kept = [p for p in pairs if unquote_to_bytes(p.partition(b"=")[0]) != KEY_IN_QUERY]
        mark, query = (mark, b"&".join(kept)) if kept else (b"", b"")
    target = path + mark + query
    if not PATH.fullmatch(target) or DOT_SEGMENT.search(path):
        raise bad_request("expected a path: one slash first, no . or .. segments; this address leads to the model only")
    return target


class Answers:
    """Reads the proxy's answers on one connection only to know where each ends. The `on_` methods are httptools' callbacks."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.whole = 0
        """Answers that have ended, without informational ones (100 Continue)."""
        self.is_within = False
        """An answer has begun and not ended."""
        self.is_last = False
        """The last answer that ended said that the connection ends with it."""

    def feed(self, data: bytes) -> None:
        """Read on. Raises ValueError for what is no answer."""
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise ValueError(str(error)) from None

    def on_message_begin(self) -> None:
        self.is_within = True

    def on_message_complete(self) -> None:
        self.is_within = False
        if self._parser.get_status_code() >= 200:
            self.whole += 1
            self.is_last = not self._parser.should_keep_alive()


class ModelConnection(CellConnection):
    """A connection from the cell and the one to the proxy."""

    def __init__(self, connections: Connections, to: Destination) -> None:
        super().__init__(connections)
        self._to = to
        self._requests = 0
        """Those led on."""
        self._answers = Answers()
        self._farewell: bytes | None = None
        """An answer of ours that ends the connection, after the answers that are still to come."""

    @property
    def patience_s(self) -> float:
        return SILENT_S if self._pending else IDLE_S

    @property
    def _pending(self) -> int:
        return self._requests - self._answers.whole

    def request_begun(self, head: RequestHead) -> None:
        if self._pending >= PIPELINED:
            raise bad_request(f"over {PIPELINED} requests on one connection without an answer")
        lines = rewritten(head, self._to)
        if not self._requests:
            self.open(self._connect)
        self._requests += 1
        self.send_out(lines)

    async def _connect(self) -> None:
        to = self._to
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._loop.create_connection(lambda: Outer(self), to.host, to.port, ssl=to.tls)
            to.is_reached = True
        except OSError as error:
            if to.is_reached:
                log.warning("proxy not reached", action="cell.proxy_unreachable", url=to.url, why=str(error))
            to.is_reached = False
            raise _bad_gateway(f"Polar's proxy can't be reached: {cause_of(error)}") from None

    def refuse(self, refused: RequestRefusedError) -> None:
        pending = self._pending
        if pending and self._reader.is_within:
            # Its head was led on, its end won't be: the proxy can't answer it, and what it says of others can't be told apart.
            if pending > 1 or self._answers.is_within:
                self.abort()
                return
            pending = 0
        if pending:
            self._farewell = refused.answer()
        else:
            self.answer_and_end(refused)

    def outer_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        before, answers = self._answers.whole, self._answers
        was_within = answers.is_within
        try:
            if not self._pending:
                raise ValueError("bytes that answer no request")
            answers.feed(data)
        except ValueError as error:
            log.warning("not an answer of the proxy", action="cell.bad_answer", url=self._to.url, why=str(error))
            if was_within or answers.whole > before or not self._pending:
                self.abort()
            else:
                self.answer_and_end(_bad_gateway("Polar's proxy sent something that is no answer"))
            return
        self.send_in(data)
        if self._farewell is not None and not self._pending:
            self.send_in(self._farewell)
            self.end()

    def outer_eof(self) -> None:
        if self._is_ending:
            return
        if self._farewell is not None:
            self.send_in(self._farewell)
        elif self._pending and not self._answers.is_within and not self._answers.is_last:
            self.answer_and_end(_bad_gateway("Polar's proxy closed the connection without an answer"))
        self.end()


def _bad_gateway(message: str) -> RequestRefusedError:
    return RequestRefusedError(502, "Bad Gateway", message)


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the system's authorities takes longer than many calls."""
    return ssl.create_default_context()


@asynccontextmanager
async def model_relay(listener: socket.socket, proxy_url: str, key: str) -> AsyncIterator[None]:
    """Lead all requests that arrive at `listener`, a listening socket, to the proxy at `proxy_url`, with `key` in place of theirs.

    At the end the listener and all connections are closed. Raises ValueError for a URL or key that can't be used.
    """
    to = Destination(proxy_url, key)
    async with serving(listener, lambda connections: ModelConnection(connections, to)):
        yield
