"""HTTP/1.1 requests as programs in a cell send them, read from a connection's bytes in whatever pieces they come; httptools parses.

Invariant: what leaves a cell is framed anew. A request's length, its transfer coding and its line ends never pass through: `RequestHead`
has no framing headers, and a chunked body is cut into chunks of ours. The next server therefore can't see another end of a request than
this reader did, which makes request smuggling impossible. A request that two servers might frame differently is refused as well: a second
Content-Length or Transfer-Encoding, both in one request, a coding other than `chunked`, a coding in HTTP/1.0, and what httptools, with all
its leniencies off, refuses (bare line ends, folded headers, spaces around names).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

HEAD_BYTES = 64 * 1024
"""Of a request's target and headers together; also of trailers and chunk extensions. Common servers allow 8 to 64 KiB."""
FRAMING_PER_BYTE = 8
"""Further framing allowed for each byte of a body: a chunk of one byte has five bytes of framing."""
OPTIONS = frozenset({b"close", b"keep-alive", b"upgrade"})
"""Options of a Connection header that name no header which may be sent on."""
OF_ONE_HOP = frozenset(
    {
        b"connection",
        b"content-length",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one connection (RFC 9110, 7.6.1), of a body's framing, and Host: all are written anew."""


class RequestRefusedError(Exception):
    """A request that isn't sent on; the answer has this status and message, and the connection then ends."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """`reason` is the text of the status line, `message` the error's text in the body."""
        self.status = status
        self.reason = reason
        super().__init__(message)

    def answer(self) -> bytes:
        """The whole answer."""
        return error_answer(self.status, self.reason, str(self))


def bad_request(message: str) -> RequestRefusedError:
    """The refusal of a request that is at fault."""
    return RequestRefusedError(400, "Bad Request", message)


def error_answer(status: int, reason: str, message: str) -> bytes:
    """An answer of ours, which ends its connection: JSON in the form that the providers' clients show."""
    body = json.dumps({"error": {"code": status, "type": "polar_cell", "message": message}}).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


@dataclass(slots=True)
class RequestHead:
    """A request without its body."""

    method: bytes
    target: bytes
    """As sent: a path with its query, an absolute URL, or an authority."""
    version: bytes
    """`1.0` or `1.1`."""
    headers: Sequence[tuple[bytes, bytes]]
    """Name in lower case, and the whole line as sent with its line end; without those of OF_ONE_HOP and those that Connection names."""
    length: int | None
    """Bytes of the body; None without a Content-Length."""
    is_chunked: bool
    is_last: bool
    """No request follows on this connection: the client asked for its end, or speaks HTTP/1.0."""

    def framing(self) -> bytes:
        """The header line that announces the body, empty if there is none."""
        if self.is_chunked:
            return b"Transfer-Encoding: chunked\r\n"
        return b"" if self.length is None else b"Content-Length: %d\r\n" % self.length


class RequestSink(Protocol):
    """The receiver of requests. Each method may raise RequestRefusedError, which ends the reading."""

    def request_begun(self, head: RequestHead) -> None:
        """A head was read."""

    def body_received(self, data: bytes) -> None:
        """The next part of the body, framed as `head.framing()` announces; after CONNECT, bytes of the tunnel."""

    def request_ended(self) -> None:
        """The request is whole. Never called after CONNECT."""


class RequestReader:
    """Reads the requests of one connection. The other `on_` methods are httptools' callbacks.

    After a request that is the last, further bytes are ignored.
    """

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser = HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._options: list[bytes] = []
        self._head_size = 0
        self._length: int | None = None
        self._is_chunked = False
        self._head: RequestHead | None = None
        """Of the request whose body is being read."""
        self._body: list[bytes] = []
        """Of the request under way, not yet passed on: all chunks of one piece of data leave as one."""
        self._body_size = 0
        self._framing_size = 0
        self._is_tunnel = False
        self._is_over = False

    @property
    def is_within(self) -> bool:
        """A request's head was passed on, and its end was not."""
        return self._head is not None

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the connection. Raises RequestRefusedError, after which nothing more is read."""
        while data and not self._is_over:
            if self._is_tunnel:
                self._sink.body_received(data)
                return
            data = self._parse(data)

    def _parse(self, data: bytes) -> bytes:
        """Feed the parser; return what must be read again, behind a head that asks for another protocol."""
        self._framing_size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            return self._without_upgrade() + data[upgrade.args[0] :]
        except HttpParserError as error:
            if self._is_over:
                return b""  # bytes after the last request
            self._is_over = True
            if isinstance(error, HttpParserCallbackError) and error.__context__ is not None:
                raise error.__context__ from None
            raise bad_request(f"the request can't be read: {error}") from None
        self._pass_body()
        if self._framing_size > HEAD_BYTES + FRAMING_PER_BYTE * self._body_size:
            self._is_over = True
            raise _too_large()
        return b""

    def on_url(self, url: bytes) -> None:
        if self._head is not None:
            return  # of `_without_upgrade`
        self._count(len(url))
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head is not None:
            return  # a trailer (Trailer wasn't sent on either), or of `_without_upgrade`
        self._count(len(name) + len(value))
        lowered = name.lower()
        if lowered not in OF_ONE_HOP:
            self._headers.append((lowered, b"%b: %b\r\n" % (name, value)))
        elif lowered == b"content-length":
            digits = value.strip(b" \t")
            # httptools refuses a second length and any that is no number; the checks here don't rely on it.
            if self._length is not None or not digits.isdigit() or len(digits) > 18:
                raise bad_request("Content-Length must be one number")
            self._length = int(digits)
        elif lowered == b"transfer-encoding":
            if self._is_chunked or value.strip(b" \t").lower() != b"chunked":
                raise bad_request("the only transfer coding served is chunked, once")
            self._is_chunked = True
        elif lowered == b"connection":
            self._options += [option.strip(b" \t") for option in value.lower().split(b",")]

    def on_headers_complete(self) -> None:
        if self._head is not None:
            return  # of `_without_upgrade`
        parser = self._parser
        version = parser.get_http_version().encode()
        if version not in (b"1.1", b"1.0"):
            raise bad_request("only HTTP/1.1 and HTTP/1.0 are served")
        if self._is_chunked and (self._length is not None or version == b"1.0"):
            raise bad_request("a transfer coding excludes Content-Length and HTTP/1.0")
        headers = self._headers
        if named := set(self._options) - OPTIONS:
            headers = [header for header in headers if header[0] not in named]
        head = RequestHead(
            parser.get_method(),
            self._target,
            version,
            headers,
            self._length,
            self._is_chunked,
            not parser.should_keep_alive() or b"close" in self._options,
        )
        self._sink.request_begun(head)
        self._head = head

    def on_body(self, data: bytes) -> None:
        self._body_size += len(data)
        self._body.append(data)

    def on_message_complete(self) -> None:
        head = self._head
        if head is None or self._parser.should_upgrade():
            return  # httptools takes a request with Upgrade for one without a body; `_without_upgrade` reads on
        self._end(head)

    def _end(self, head: RequestHead) -> None:
        self._pass_body()
        if head.is_chunked:
            self._sink.body_received(b"0\r\n\r\n")
        self._is_over = head.is_last
        self._target, self._headers, self._options = b"", [], []
        self._length, self._is_chunked, self._head = None, False, None
        self._head_size = self._body_size = self._framing_size = 0
        self._sink.request_ended()

    def _without_upgrade(self) -> bytes:
        """Begin the tunnel of CONNECT. Otherwise there is no other protocol: return a head after which a body begins."""
        head = self._head
        assert head is not None, "a head came before"
        if head.method == b"CONNECT":
            self._is_tunnel, self._head = True, None
            return b""
        self._parser = HttpRequestParser(self)
        return b"POST / HTTP/1.1\r\n" + head.framing() + b"\r\n"

    def _pass_body(self) -> None:
        if not self._body:
            return
        assert self._head is not None, "a head comes before its body"
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._sink.body_received(b"%x\r\n%b\r\n" % (len(data), data) if self._head.is_chunked else data)

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > HEAD_BYTES:
            raise _too_large()


def _too_large() -> RequestRefusedError:
    return RequestRefusedError(
        431,
        "Request Header Fields Too Large",
        f"the request's head, or the framing of its body, is over {HEAD_BYTES} bytes",
    )
