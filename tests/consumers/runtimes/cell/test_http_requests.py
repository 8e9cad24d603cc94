"""Requests are read the same however their bytes are cut, and nothing of their framing passes through."""

from __future__ import annotations

from dataclasses import dataclass, field

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.runtimes.cell.http_requests import HEAD_BYTES, RequestHead, RequestReader, RequestRefusedError

POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"
NEXT = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass
class Seen:
    """What a reader made of a connection's bytes."""

    heads: list[RequestHead] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ended: int = 0

    def request_begun(self, head: RequestHead) -> None:
        self.heads.append(head)
        self.bodies.append(b"")

    def body_received(self, data: bytes) -> None:
        self.bodies[-1] += data

    def request_ended(self) -> None:
        self.ended += 1

    def led_on(self) -> bytes:
        """The requests as a next server reads them."""
        return b"".join(
            b"%b / HTTP/%b\r\nHost: h\r\n" % (head.method, head.version)
            + b"".join(line for _, line in head.headers)
            + head.framing()
            + b"\r\n"
            + body
            for head, body in zip(self.heads, self.bodies, strict=True)
        )


def read(*pieces: bytes) -> tuple[Seen, RequestRefusedError | None]:
    seen = Seen()
    reader = RequestReader(seen)
    try:
        for piece in pieces:
            reader.feed(piece)
    except RequestRefusedError as refused:
        return seen, refused
    return seen, None


def unchunked(head: RequestHead, body: bytes) -> bytes:
    """A body as h11 reads it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"POST / HTTP/1.1\r\nHost: h\r\n" + head.framing() + b"\r\n" + body)
    found = b""
    while isinstance(event := server.next_event(), h11.Request | h11.Data):
        found += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert isinstance(event, h11.EndOfMessage)
    return found


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def test_requests_on_one_connection_are_read_in_turn() -> None:
    seen, refused = read(POST + b"Content-Length: 3\r\nX-A: b\r\n\r\nabc" + NEXT)
    assert refused is None
    assert [(head.method, head.target) for head in seen.heads] == [(b"POST", b"/a"), (b"GET", b"/b")]
    assert (seen.bodies, seen.ended) == ([b"abc", b""], 2)
    assert list(seen.heads[0].headers) == [(b"x-a", b"X-A: b\r\n")]


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Content-Length: 3, 3\r\n\r\nabc",
        b"Content-Length: +3\r\n\r\nabc",
        b"Content-Length: -3\r\n\r\nabc",
        b"Content-Length: 0x3\r\n\r\nabc",
        b"Content-Length: 3_0\r\n\r\nabc",
        b"Content-Length: \r\n\r\nabc",
        b"Content-Length : 3\r\n\r\nabc",
        b"Content-Length: 99999999999999999999\r\n\r\nabc",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: identity\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
        b"X: a\r\n Content-Length: 3\r\n\r\nabc",
        b"X: a\rContent-Length: 3\r\n\r\nabc",
        b"X: a\nContent-Length: 3\r\n\r\nabc",
        b"X: a\x00b\r\n\r\n",
        b"X Y: a\r\n\r\n",
        b": a\r\n\r\n",
    ],
)
def test_a_request_that_servers_may_frame_differently_is_refused(framing: bytes) -> None:
    seen, refused = read(POST + framing + NEXT)
    assert refused is not None
    assert refused.status == 400
    assert seen.ended == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /a HTTP/2.0\r\n\r\n",
        b"GET /a HTTP/0.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET /a\n\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_what_is_no_request_of_http_1_is_refused(request_bytes: bytes) -> None:
    seen, refused = read(request_bytes)
    assert refused is not None
    assert (refused.status, seen.ended) == (400, 0)


def test_headers_of_one_hop_and_those_that_connection_names_are_dropped() -> None:
    dropped = b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nProxy-Authorization: Basic eDp5\r\n"
    seen, _ = read(
        POST + dropped + b"Keep-Alive: 5\r\nTrailer: X-T\r\nX-Kept: \xff 2 \r\nX-Empty:\r\nContent-Length: 0\r\n\r\n"
    )
    assert [line for _, line in seen.heads[0].headers] == [b"X-Kept: \xff 2 \r\n", b"X-Empty: \r\n"]


@pytest.mark.parametrize(
    ("head", "is_last"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False),
    ],
)
def test_the_last_request_is_known_and_nothing_behind_it_is_read(head: bytes, is_last: bool) -> None:
    seen, refused = read(head + NEXT + b"\x00nonsense") if is_last else read(head + NEXT)
    assert refused is None
    assert (seen.heads[0].is_last, seen.ended) == (is_last, 1 if is_last else 2)


@pytest.mark.parametrize(
    "framed", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"a", b"bc")]
)
def test_an_upgrade_is_no_end_of_a_request_and_hides_none(framed: bytes) -> None:
    # httptools alone takes the body for bytes of the other protocol.
    data = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n" + framed + NEXT
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        seen, refused = read(*pieces)
        assert refused is None
        assert [head.target for head in seen.heads] == [b"/a", b"/b"]
        assert unchunked(seen.heads[0], seen.bodies[0]) == b"abc"
        assert not seen.heads[0].headers


def test_an_upgrade_without_a_body_is_a_plain_request() -> None:
    seen, refused = read(b"GET /a HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + NEXT)
    assert refused is None
    assert [head.target for head in seen.heads] == [b"/a", b"/b"]


def test_after_connect_bytes_pass_as_they_are() -> None:
    seen, refused = read(b"CONNECT a:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\n\x16\x03", b"\x00GET / HTTP/1.1\r\n\r\n")
    assert refused is None
    assert (seen.heads[0].target, seen.ended) == (b"a:443", 0)
    assert seen.bodies == [b"\x16\x03\x00GET / HTTP/1.1\r\n\r\n"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n\r\n"],
        [b"GET / HTTP/1.1\r\n"] + [b"X: %b\r\n" % (b"a" * 1000)] * 70,
        [b"GET / HTTP/1.1\r\nX: "] + [b"a" * 1000] * 70,
        [b"GET / HTTP/1.1\r\n"] + [b"a" * 1000] * 70,
        [POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"] + [b"X: %b\r\n" % (b"a" * 1000)] * 70,
        [POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "] + [b"a" * 1000] * 70,
        [POST + b"Transfer-Encoding: chunked\r\n\r\n1;"] + [b"a" * 1000] * 70,
    ],
    ids=["target", "headers", "value", "name", "trailers", "trailer", "extension"],
)
def test_a_head_or_framing_without_an_end_is_refused(pieces: list[bytes]) -> None:
    _, refused = read(*pieces)
    assert refused is not None
    assert refused.status == 431
    assert refused.answer().startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_long_bodies_pass_however_small_their_chunks_are() -> None:
    for data in (
        POST + b"Content-Length: 1000000\r\n\r\n" + b"a" * 1000000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*[b"a"] * 100000),
    ):
        seen, refused = read(*[data[at : at + 4096] for at in range(0, len(data), 4096)])
        assert refused is None
        assert seen.ended == 1


names = st.text(st.sampled_from("abXY-_"), min_size=1, max_size=8).map(lambda name: b"X-" + name.encode())
values = st.binary(max_size=12).map(lambda value: bytes(b for b in value if b >= 32 and b != 127).strip())
bodies = st.one_of(
    st.just((b"", b"")),
    st.binary(max_size=60).map(lambda body: (b"Content-Length: %d\r\n" % len(body), body)),
    st.lists(st.binary(min_size=1, max_size=20), max_size=5).map(
        lambda chunks: (b"transfer-encoding: Chunked\r\n", chunked(*chunks))
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Bytes of one well-formed request."""
    framing, body = draw(bodies)
    headers = b"".join(b"%b: %b\r\n" % header for header in draw(st.lists(st.tuples(names, values), max_size=4)))
    upgrade = draw(st.sampled_from([b"", b"", b"Connection: upgrade\r\nUpgrade: websocket\r\n"]))
    return b"POST /%d HTTP/1.1\r\n" % draw(st.integers(0, 9)) + headers + upgrade + framing + b"\r\n" + body


@given(st.lists(requests(), min_size=1, max_size=4), st.data())
def test_requests_are_the_same_however_their_bytes_are_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(sent)
    whole, refused = read(stream)
    assert refused is None
    assert (len(whole.heads), whole.ended) == (len(sent), len(sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    cut, refused = read(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)))
    assert refused is None
    assert (cut.heads, cut.ended) == (whole.heads, whole.ended)
    for head, body, other in zip(whole.heads, whole.bodies, cut.bodies, strict=True):
        assert unchunked(head, body) == unchunked(head, other)


PARTS = [
    *(b"POST /a HTTP/1.1\r\n", b"GET /b HTTP/1.1\r\n", b"GET /c HTTP/1.0\r\n", b"Host: h\r\n", b"X: y\r\n", b"X:\r\n"),
    *(
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"transfer-encoding:chunked\r\n",
    ),
    *(b"Transfer-Encoding: identity\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n", b"Connection: close\r\n"),
    *(b"Connection: content-length\r\n", b"Expect: 100-continue\r\n", b"5\r\n", b"hello", b"0\r\n\r\n", b";ext=1"),
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00"),
]
hostile = st.lists(st.sampled_from(PARTS), max_size=25)


@given(hostile)
@example(
    [b"POST /a HTTP/1.1\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n", b"Content-Length: 5\r\n", b"\r\n", b"hello"]
)
def test_another_parser_finds_the_same_requests_in_what_is_led_on(parts: list[bytes]) -> None:
    """Whatever a client sends, h11 sees as many requests as this reader did, with the same ends: none is smuggled."""
    seen, _ = read(b"".join(parts))
    server, found, ended = h11.Connection(h11.SERVER), 0, 0
    if seen.heads:  # to h11, no bytes are the connection's end
        server.receive_data(seen.led_on())
    while not isinstance(event := server.next_event(), type):  # NEED_DATA and PAUSED are types
        assert not isinstance(event, h11.ConnectionClosed)
        found += isinstance(event, h11.Request)
        ended += isinstance(event, h11.EndOfMessage)
        if isinstance(event, h11.EndOfMessage):
            server.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            server.send(h11.EndOfMessage())
            if server.our_state is h11.MUST_CLOSE:  # HTTP/1.0
                break
            server.start_next_cycle()
    assert (found, ended) == (len(seen.heads), seen.ended)
