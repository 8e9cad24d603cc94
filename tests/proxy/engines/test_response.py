"""An HTTP answer is read whole or not at all, in whatever pieces its bytes come, as aiohttp's own server and others write it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines.response import BrokenAnswerError, Response, ResponseReader

BODY = b'{"text":"\r\n\r\n0\r\n\r\n"}'
SIZED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n"
    + BODY[:3]
    + b"\r\n%X;name=value\r\n" % len(BODY[3:])
    + BODY[3:]
    + b"\r\n0\r\n\r\n"
)
TRAILED = CHUNKED.removesuffix(b"\r\n") + b"Expires: 0\r\n\r\n"
UNTIL_END = b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\n" + BODY
AFTER_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + SIZED


def read(pieces: list[bytes]) -> Response:
    reader = ResponseReader()
    for piece in pieces:
        if (response := reader.feed(piece)) is not None:
            return response
    return reader.eof()


@given(st.sampled_from([SIZED, CHUNKED, TRAILED, UNTIL_END, AFTER_HINTS]), st.lists(st.integers(0, 200), max_size=6))
def test_an_answer_is_the_same_in_any_pieces(answer: bytes, cuts: list[int]) -> None:
    ends = sorted({0, len(answer), *(cut % len(answer) for cut in cuts)})
    response = read([answer[start:end] for start, end in pairwise(ends)])
    assert (response.status, response.body) == (200, BODY)


def test_a_trailer_replaces_no_header() -> None:
    answer = TRAILED.replace(b"OK\r\n", b"OK\r\nExpires: 7\r\n")
    assert read([answer]).headers["expires"] == "7"


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, TRAILED, AFTER_HINTS])
def test_an_answer_that_ends_early_is_broken_wherever_it_ends(answer: bytes) -> None:
    for cut in range(len(answer)):
        with pytest.raises(BrokenAnswerError):
            read([answer[:cut]])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/2 200\r\n\r\n",
        b"<html>\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"H" * 70_000,
        b"HTTP/1.1 200 OK\r\nX: %b\r\nY: y\r\nContent-Length: 0\r\n\r\n" % (b"1" * 70_000),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n" + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTrailer: " + b"1" * 70_000,
    ],
)
def test_what_is_no_answer_is_broken(answer: bytes) -> None:
    with pytest.raises(BrokenAnswerError):
        ResponseReader().feed(answer)


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (SIZED, True),
        (CHUNKED, True),
        (SIZED + b"more", False),
        (CHUNKED + b"more", False),
        (UNTIL_END, False),
        (SIZED.replace(b"Content-Type", b"Connection: close\r\nContent-Type"), False),
        (SIZED.replace(b"1.1", b"1.0"), False),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_a_connection_is_kept_where_both_sides_know_that_the_answer_is_over(answer: bytes, is_kept: bool) -> None:
    assert read([answer]).is_kept is is_kept
