"""One HTTP/1.1 answer read from a connection's bytes, in whatever pieces they come; httptools parses.

Invariant: an answer is whole by its length, by its last chunk, or by the connection's end if its head gives no length. Anything else is
`BrokenAnswerError`, and so is a compressed body, which nobody requested.
"""

from __future__ import annotations

from dataclasses import dataclass

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_FRAMING_BYTES = 64 * 1024
"""Limit of a head, a chunk's size line or a trailer: servers send a few hundred bytes."""
FRAMING_PER_BYTE = 8
"""Further framing allowed for each byte of a body: a chunk of one byte has five bytes of framing, more with an extension."""
MAX_BODY_BYTES = 128 * 1024 * 1024
"""Far more than an answer of 100,000 tokens with logprobs (about 100 bytes a token); a limit on memory."""
WITHOUT_BODY = (204, 304)


class NoAnswerError(Exception):
    """A server took a request and gave no usable answer."""


class BrokenAnswerError(NoAnswerError):
    """The bytes received are no whole answer; the message says why."""


class AnswerTooLargeError(NoAnswerError):
    """The body is larger than MAX_BODY_BYTES."""


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
    """Reads one answer. The `on_` methods are httptools' callbacks."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._received = 0
        self._status = 0
        """0 until the head of the final answer is whole."""
        self._headers: dict[str, str] = {}
        self._head_size = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._ends_with_connection = False
        self._is_whole = False
        self._is_kept = False

    @property
    def has_begun(self) -> bool:
        """Some of the answer has arrived."""
        return self._received > 0

    def feed(self, data: bytes) -> Response | None:
        """The answer as soon as it is whole. Raises BrokenAnswerError, AnswerTooLargeError."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise BrokenAnswerError("a switch of protocols") from None
        except HttpParserError as error:
            if isinstance(error.__context__, NoAnswerError):  # raised by a callback
                raise error.__context__ from None
            if not self._is_whole:
                raise BrokenAnswerError(str(error)) from None
            self._is_kept = False  # bytes that belong to no request follow the answer
        if self._is_whole:
            return self._response()
        if self._received - self._size > MAX_FRAMING_BYTES + FRAMING_PER_BYTE * self._size:
            raise BrokenAnswerError("a head, a chunk's size or a trailer without an end")
        return None

    def eof(self) -> Response:
        """The answer that the connection's end completes. Raises BrokenAnswerError if the connection ended too early."""
        if not self._ends_with_connection:
            raise BrokenAnswerError("the connection was closed")
        return self._response()

    def release(self) -> None:
        """Drop the parser, whose callbacks refer to this reader: the cycle would keep the answer until Python's collector runs."""
        del self._parser

    def on_message_begin(self) -> None:
        if self._is_whole:
            self._is_kept = False
        else:
            self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._status:  # a trailer, or the head of an answer that nobody requested
            return
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_FRAMING_BYTES:
            raise BrokenAnswerError("a head without an end")
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._is_whole or status < 200:  # an informational answer is followed by another
            return
        self._status = status
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            raise BrokenAnswerError("a content coding that was not requested")
        coding, length = self._headers.get("transfer-encoding"), self._headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None):
            raise BrokenAnswerError("a transfer coding other than chunked, or one with a length")
        self._limit(int(length or 0))
        self._ends_with_connection = coding is None and length is None and status not in WITHOUT_BODY

    def on_body(self, data: bytes) -> None:
        if not self._is_whole:
            self._size += len(data)
            self._limit(self._size)
            self._chunks.append(data)

    def on_message_complete(self) -> None:
        if self._status and not self._is_whole:
            self._is_whole, self._is_kept = True, self._parser.should_keep_alive()

    def _limit(self, size: int) -> None:
        if size > MAX_BODY_BYTES:
            raise AnswerTooLargeError

    def _response(self) -> Response:
        return Response(self._status, self._headers, b"".join(self._chunks), self._is_kept)
