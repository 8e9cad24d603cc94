"""One HTTP/1.1 answer out of a connection's bytes (RFC 9112), without a socket: fed as they come, in whatever pieces.

Invariant: what it yields is whole, by its length, its last chunk, or the connection's end where nothing else tells. What it can't be sure
of is `Broken`: a garbled head, a length that is none, a coding that nobody asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 128 * 1024 * 1024
STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: [^\r\n]*)?")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*)")
DIGITS = re.compile(rb"[0-9]{1,12}")
CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
WITHOUT_BODY = (204, 304)


class Broken(Exception):  # noqa: N818 - what is known, not whose fault it is
    """No whole answer came of these bytes; the message says why."""


class TooLarge(Exception):  # noqa: N818
    """The answer has more bytes than anybody reads."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    is_kept: bool
    """The connection may be used again."""


class ResponseReader:
    """Reads one answer."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._status = 0
        """0 while the head isn't whole."""
        self._headers: dict[str, str] = {}
        self._length: int | None = None
        """Of the body; None: it is chunked, or lasts until the connection's end."""
        self._is_chunked = False
        self._is_kept = False
        self._chunks: list[bytes] = []
        self._size = 0

    @property
    def has_begun(self) -> bool:
        """Some of the answer is there."""
        return self._status > 0 or bool(self._held)

    def feed(self, data: bytes) -> Response | None:
        """The answer, once it is whole. Raises Broken, TooLarge."""
        self._held += data
        while self._status < 200:  # an informational answer is followed by another
            if not self._read_head():
                return None
        if self._is_chunked:
            return self._chunked()
        if self._length is None:
            self._bound(len(self._held))
            return None
        return self._whole(bytes(self._held[: self._length])) if len(self._held) >= self._length else None

    def eof(self) -> Response:
        """The answer that the connection's end completes. Raises Broken where there is none."""
        if self._status >= 200 and self._length is None and not self._is_chunked:
            self._length = len(self._held)
            return self._whole(bytes(self._held))
        raise Broken("the connection was closed")

    def _read_head(self) -> bool:
        """Takes the head off, if it is whole."""
        end = self._held.find(b"\r\n\r\n")
        if end > MAX_HEAD_BYTES:
            raise Broken("a head without an end")
        if end < 0:
            self._bound_line(0, "a head")
            return False
        first, *lines = bytes(self._held[:end]).split(b"\r\n")
        del self._held[: end + 4]
        status = STATUS.fullmatch(first)
        if status is None:
            raise Broken("no HTTP/1 status line")
        self._status = int(status[2])
        self._headers = {}
        for line in lines:
            header = HEADER.fullmatch(line)
            if header is None:
                raise Broken("a garbled header")
            name, value = header[1].decode().lower(), header[2].strip().decode("latin-1")
            if name == "content-length" and self._headers.get(name, value) != value:
                raise Broken("two lengths")
            self._headers[name] = value
        self._frame(is_new=status[1] == b"1")
        return True

    def _frame(self, *, is_new: bool) -> None:
        """What the head says of the body's end, and of the connection's."""
        headers = self._headers
        connection = headers.get("connection", "").lower()
        self._is_kept = "close" not in connection if is_new else "keep-alive" in connection
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Broken("a coding that wasn't asked for")
        if self._status in WITHOUT_BODY or self._status < 200:
            self._length = 0
        elif "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers:
                raise Broken("a transfer coding that isn't understood")
            self._is_chunked = True
        elif (length := headers.get("content-length")) is not None:
            if DIGITS.fullmatch(length.encode()) is None:
                raise Broken("a length that is none")
            self._length = int(length)
            self._bound(self._length)
        else:
            self._is_kept = False

    def _chunked(self) -> Response | None:
        """Takes whole chunks off; the last, empty one and the trailer after it complete the body."""
        at = 0
        while (end := self._held.find(b"\r\n", at)) >= 0:
            chunk = CHUNK.fullmatch(self._held, at, end)
            if chunk is None:
                raise Broken("a garbled chunk")
            size, begin = int(chunk[1], 16), end + 2
            if size == 0:
                done = self._held.find(b"\r\n\r\n", end)
                if done < 0:
                    self._bound_line(end, "a trailer")
                    break
                del self._held[: done + 4]
                self._length = 0
                return self._whole(b"".join(self._chunks))
            self._bound(self._size + size)
            if len(self._held) < begin + size + 2:
                break
            if self._held[begin + size : begin + size + 2] != b"\r\n":
                raise Broken("a chunk that is longer than it says")
            self._chunks.append(bytes(self._held[begin : begin + size]))
            self._size += size
            at = begin + size + 2
        else:
            self._bound_line(at, "a chunk's size")
        del self._held[:at]
        return None

    def _whole(self, body: bytes) -> Response:
        assert self._length is not None, "known by now"
        # What comes after its end belongs to no request.
        return Response(self._status, self._headers, body, self._is_kept and len(self._held) == self._length)

    def _bound_line(self, at: int, what: str) -> None:
        """What is held from `at` on has no end yet."""
        if len(self._held) - at > MAX_HEAD_BYTES:
            raise Broken(f"{what} without an end")

    def _bound(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise TooLarge
