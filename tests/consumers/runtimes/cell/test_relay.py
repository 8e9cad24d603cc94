"""The relay to the model: whose key arrives, what passes as it is, and how each end of a connection ends the other.

The proxy is a raw socket whose bytes the test writes; `test_relay_clients.py` has the real one.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from yarl import URL

from consumers.runtimes.cell import connections, relay
from consumers.runtimes.cell.http_requests import HEAD_BYTES, RequestHead, RequestReader, RequestRefusedError
from consumers.runtimes.cell.relay import Destination, model_relay, rewritten
from tests.certificates import certificate
from tests.consumers.runtimes.cell.wires import Upstream, Wire, client_of, listening, upstream_at
from tests.waiting import eventually
from topics.environment.redaction import PREFIX

KEY = f"{PREFIX}own.key_1"
THEIRS = b"sk-polar-theirs"
TO = Destination("http://proxy.example:8400/base", KEY)
GET = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def head_of(request: bytes) -> RequestHead:
    heads: list[RequestHead] = []

    class Sink:
        def request_begun(self, head: RequestHead) -> None:
            heads.append(head)

        def body_received(self, data: bytes) -> None: ...

        def request_ended(self) -> None: ...

    RequestReader(Sink()).feed(request)
    return heads[0]


def led_on(request: bytes, to: Destination = TO) -> tuple[bytes, list[bytes]]:
    """The target and the header lines that a request's head becomes."""
    first, *lines = rewritten(head_of(request), to).removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, version = first.split(b" ")
    assert (method, version) == (b"POST", b"HTTP/1.1")
    return target, lines


CREDENTIALS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key", b"x-polar-key", b"x-polar-forwarded")
others = st.sampled_from(
    [b"Accept", b"x-stainless-os", b"anthropic-version", b"X-Session-ID", b"Cookie", b"X-Pol", b"authorization2"]
)
values = st.binary(max_size=12).map(lambda value: bytes(b for b in value if b >= 32 and b != 127).strip(b" \t"))
cased = st.sampled_from(CREDENTIALS).flatmap(lambda name: st.sampled_from([name, name.upper(), name.title()]))
credentials = st.tuples(cased, st.sampled_from([THEIRS, b"Bearer " + THEIRS, b"bearer\t" + THEIRS, b""]))


@given(st.lists(st.one_of(credentials, st.tuples(others, values)), max_size=8))
def test_no_credential_of_the_client_is_led_on_and_every_other_header_is(headers: list[tuple[bytes, bytes]]) -> None:
    lines = [b"%b: %b" % header for header in headers]
    _, sent = led_on(b"\r\n".join([b"POST / HTTP/1.1", *lines, b"", b""]))
    assert not any(THEIRS in line for line in sent)
    assert sent[0] == b"Host: proxy.example:8400"
    kept = [line for line, (name, _) in zip(lines, headers, strict=True) if name.lower() not in CREDENTIALS]
    own = [line for line in sent if KEY.encode() in line]
    assert [line for line in sent[1:] if line not in own] == kept
    received = [line.decode().lower().split(": ") for line in own]
    replaced = {name.decode().lower() for name, _ in headers if name.lower() in CREDENTIALS[:4]}
    assert {name for name, _ in received} == (replaced or {"x-polar-key"})
    assert {value for _, value in received} <= {KEY, f"bearer {KEY}"}


spelled = st.text("key", min_size=3, max_size=3).filter("key".__eq__) | st.lists(
    st.booleans(), min_size=3, max_size=3
).map(lambda coded: "".join(f"%{ord(c):02x}" if is_coded else c for c, is_coded in zip("key", coded, strict=True)))
pairs = st.lists(
    st.one_of(
        spelled.map(lambda name: f"{name}={THEIRS.decode()}"),
        spelled,
        st.binary(max_size=8).map(lambda text: quote_from_bytes(text, safe="=+")),
        st.sampled_from(["alt=sse", "keys=1", "a=key", "Key=2", "", "%6bey2=x"]),
    ),
    max_size=6,
)


@given(pairs)
@example(["%6bey=sk-polar-theirs"])
def test_the_proxy_finds_no_key_in_the_query_and_all_else_as_it_was(parts: list[str]) -> None:
    before = URL("/v1/a?" + "&".join(parts), encoded=True)
    target, _ = led_on(b"POST %b HTTP/1.1\r\n\r\n" % str(before).encode())
    after = URL(target.decode(), encoded=True)
    assert "key" not in after.query
    assert [pair for pair in before.query.items() if pair[0] != "key"] == list(after.query.items())
    if not any(name == "key" for name in before.query):
        assert target == b"/base" + str(before).encode()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v1/messages", b"/base/v1/messages"),
        (b"/v1beta/models/a%2Fb:generateContent?alt=sse", b"/base/v1beta/models/a%2Fb:generateContent?alt=sse"),
        (b"/v1/a//b/...", b"/base/v1/a//b/..."),
        (b"/s/sk-polar-theirs/v1/messages", b"/base/v1/messages"),
        (b"/%73/sk-polar-theirs/v1/messages?key=1", b"/base/v1/messages"),
        (b"/s/a/s/sk-polar-theirs/v1", b"/base/v1"),
        (b"/s/sk-polar-theirs", b"/base/"),
        (b"/", b"/base/"),
        (b"/?key=1&a", b"/base/?a"),
    ],
)
def test_a_path_follows_the_base_url_without_a_key(target: bytes, expected: bytes) -> None:
    assert led_on(b"POST %b HTTP/1.1\r\n\r\n" % target)[0] == expected


@pytest.mark.parametrize(
    "target",
    [
        b"//evil/x",
        b"///evil",
        b"/s/sk-polar-theirs//evil/x",
        b"http://other/x",
        b"HTTP://other/x",
        b"https://other/x",
        b"*",
        b"/../x",
        b"/a/..",
        b"/a/./b",
        b"/%2e%2E/x",
        b"/a/.%2e/b",
        b"/a%2f..%2fb",
        b"/s/k/../x",
        b"/a#b",
        b"/\\evil",
    ],
)
def test_a_target_that_is_no_plain_path_is_refused(target: bytes) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        led_on(b"POST %b HTTP/1.1\r\n\r\n" % target)
    assert refused.value.status == 400


@pytest.mark.parametrize("request_line", [b"CONNECT other:443", b"TRACE /v1/models"])
def test_what_could_lead_elsewhere_or_show_the_key_is_refused(request_line: bytes) -> None:
    with pytest.raises(RequestRefusedError, match="the model only"):
        rewritten(head_of(request_line + b" HTTP/1.1\r\n\r\n"), TO)


@pytest.mark.parametrize("url", ["ftp://a", "a:1", "http://", "http://u:p@a", "http://a?b", "http://a:x"])
def test_a_url_that_is_no_base_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"proxy_url|[Pp]ort"):
        Destination(url, KEY)


def test_a_key_that_would_break_a_header_is_refused_unseen() -> None:
    with pytest.raises(ValueError, match="key") as refused:
        Destination("http://a", "sk-polar-x\r\nX: y")
    assert "sk-polar" not in str(refused.value)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with upstream_at() as upstream:
        yield upstream


@pytest.fixture
async def listener(upstream: Upstream) -> AsyncIterator[socket.socket]:
    """The cell's socket, served by a relay to `upstream`."""
    listener = listening()
    async with model_relay(listener, upstream.url, KEY):
        yield listener


@pytest.fixture
async def client(listener: socket.socket) -> AsyncIterator[Wire]:
    async with client_of(listener) as client:
        yield client


async def test_a_stream_passes_event_by_event_in_the_very_bytes(client: Wire, upstream: Upstream) -> None:
    await client.send(b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nx-api-key: none\r\nContent-Length: 2\r\n\r\n{}")
    proxy = await upstream.accepted()
    assert b"x-api-key: " + KEY.encode() in await proxy.head()
    assert await proxy.exactly(2) == b"{}"
    for part in (
        b"HTTP/1.1 200 OK\r\ntransfer-Encoding:  chunked\r\n\r\n",
        b"5;x=y\r\nevent\r\n",
        b"1\r\n\n\r\n",
        b"0\r\nT: 1\r\n\r\n",
    ):
        await proxy.send(part)
        assert await client.exactly(len(part)) == part
    await client.send(GET)
    assert (await proxy.head()).startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert upstream.connections == 1


async def test_chunks_of_a_body_pass_as_they_come(client: Wire, upstream: Upstream) -> None:
    await client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    proxy = await upstream.accepted()
    assert b"\r\nTransfer-Encoding: chunked\r\n" in await proxy.head()
    await client.send(b"3;ext=1\r\nabc\r\n")
    assert await proxy.until(b"abc\r\n") == b"3\r\nabc\r\n"
    await client.send(b"1\r\nd\r\n0\r\nTrailer: x\r\n\r\n")
    assert await proxy.until(b"0\r\n\r\n") == b"1\r\nd\r\n0\r\n\r\n"


async def test_expect_is_answered_by_the_proxy(client: Wire, upstream: Upstream) -> None:
    await client.send(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    proxy = await upstream.accepted()
    assert b"Expect: 100-continue" in await proxy.head()
    await proxy.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
    await client.send(b"{}")
    assert await proxy.exactly(2) == b"{}"
    await proxy.send(OK)
    assert await client.exactly(len(OK)) == OK
    await client.send(GET)
    await proxy.head()  # the connection is in step


async def test_pipelined_requests_are_answered_in_their_order(client: Wire, upstream: Upstream) -> None:
    await client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(3)))
    proxy = await upstream.accepted()
    for number in range(3):
        assert (await proxy.head()).startswith(b"GET /%d " % number)
    for number in range(3):
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number
        await proxy.send(answer)
        assert await client.exactly(len(answer)) == answer


async def test_a_bad_request_behind_a_good_one_is_answered_after_it(client: Wire, upstream: Upstream) -> None:
    await client.send(GET + b"GET //evil HTTP/1.1\r\n\r\n" + GET)
    proxy = await upstream.accepted()
    await proxy.head()
    await proxy.send(OK)
    assert await client.exactly(len(OK)) == OK
    assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert await proxy.rest() == b""


async def test_a_request_that_breaks_in_its_body_is_answered_and_ends_at_the_proxy(
    client: Wire, upstream: Upstream
) -> None:
    await client.send(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    proxy = await upstream.accepted()
    await proxy.until(b"1\r\na\r\n")
    await client.send(b"nonsense\r\n")
    assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert await proxy.is_gone()


async def test_too_many_unanswered_requests_are_refused(client: Wire, upstream: Upstream) -> None:
    await client.send(GET * (relay.PIPELINED + 1))
    proxy = await upstream.accepted()
    for _ in range(relay.PIPELINED):
        await proxy.head()
    await proxy.send(OK * relay.PIPELINED)
    answers = await client.rest()
    assert answers.count(b" 200 OK\r\n") == relay.PIPELINED
    assert b" 400 Bad Request\r\n" in answers


async def test_a_head_answer_has_no_body_and_ends_its_connection(client: Wire, upstream: Upstream) -> None:
    await client.send(b"HEAD /a HTTP/1.1\r\n\r\n" + GET)
    proxy = await upstream.accepted()
    assert b"\r\nConnection: close\r\n" in await proxy.head()
    await proxy.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n")
    proxy.close()
    assert (await client.rest()).endswith(b"Connection: close\r\n\r\n")


async def test_http_1_0_gets_its_end_of_the_connection(client: Wire, upstream: Upstream) -> None:
    await client.send(b"GET /a HTTP/1.0\r\n\r\n")
    proxy = await upstream.accepted()
    head = await proxy.head()
    assert head.startswith(b"GET /a HTTP/1.0\r\n")
    assert b"\r\nConnection: close\r\n" in head
    await proxy.send(b"HTTP/1.0 200 OK\r\n\r\nwithout a length")
    proxy.close()
    assert (await client.rest()).endswith(b"\r\n\r\nwithout a length")


async def test_an_early_answer_arrives_while_the_body_is_still_sent(client: Wire, upstream: Upstream) -> None:
    await client.send(b"POST /a HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n" + b"a" * 1000)
    proxy = await upstream.accepted()
    await proxy.head()
    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    await proxy.send(early)
    proxy.close()
    assert await client.exactly(len(early)) == early
    for _ in range(100):  # what is still sent is dropped, and resets nothing
        await client.send(b"a" * 10000)
    assert await client.rest() == b""


async def test_a_client_that_hangs_up_ends_its_call(client: Wire, upstream: Upstream) -> None:
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    client.close()
    assert await proxy.is_gone()


async def test_a_proxy_that_closes_an_idle_connection_closes_the_clients(client: Wire, upstream: Upstream) -> None:
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    await proxy.send(OK)
    assert await client.exactly(len(OK)) == OK
    proxy.close()
    assert await client.rest() == b""


async def test_a_cut_answer_arrives_cut(client: Wire, upstream: Upstream) -> None:
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    await proxy.send(cut)
    proxy.close()
    assert await client.rest() == cut


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "no answer"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "no answer"),
    ],
)
async def test_a_proxy_without_an_answer_is_a_502_with_the_cause(
    client: Wire, upstream: Upstream, answer: bytes, words: str
) -> None:
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    await proxy.send(answer)
    proxy.close()
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert words in json.loads(body)["error"]["message"]


async def test_bytes_that_answer_nothing_never_reach_the_cell(client: Wire, upstream: Upstream) -> None:
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    await proxy.send(OK)
    assert await client.exactly(len(OK)) == OK
    await proxy.send(OK)
    assert await client.rest() == b""


async def test_an_unreachable_proxy_is_a_502_without_its_address_and_is_logged_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    listener = listening()
    with capture_logs() as logs:
        async with model_relay(listener, f"http://127.0.0.1:{port}", KEY):
            for _ in range(2):
                async with client_of(listener) as client:
                    await client.send(GET * 2)
                    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
                    assert json.loads(body)["error"]["message"] == "Polar's proxy can't be reached: connection refused"
    [entry] = [entry for entry in logs if entry["action"] == "cell.proxy_unreachable"]
    assert str(port) in entry["url"]
    assert KEY not in str(logs)


@pytest.mark.contract
@pytest.mark.parametrize("is_trusted", [True, False])
async def test_an_https_proxy_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool) -> None:
    for name in ("proxy", "stranger"):
        certificate(tmp_path, name)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / ("proxy.pem" if is_trusted else "stranger.pem")))
    relay._tls.cache_clear()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "proxy.pem", tmp_path / "proxy.key")
    listener = listening()
    async with upstream_at(tls=context) as upstream:
        url = f"https://127.0.0.1:{upstream.port}"
        async with model_relay(listener, url, KEY), client_of(listener) as client:
            await client.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
            if is_trusted:
                proxy = await upstream.accepted()
                assert KEY.encode() in await proxy.head()
                await proxy.send(OK)
                proxy.close()
                assert await client.rest() == OK
            else:
                assert b"TLS failed (CERTIFICATE_VERIFY_FAILED)" in await client.rest()
    relay._tls.cache_clear()


async def test_a_head_over_the_limit_gets_431(client: Wire, upstream: Upstream) -> None:
    await client.send(b"GET / HTTP/1.1\r\nX: " + b"a" * HEAD_BYTES + b"\r\n\r\n")
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    assert upstream.connections == 0


async def test_a_body_flows_only_as_fast_as_the_proxy_reads(client: Wire, upstream: Upstream) -> None:
    size = 64 * 1024 * 1024
    await client.send(b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
    proxy = await upstream.accepted()
    await proxy.head()
    proxy.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket transport
    sent = await client.stuff(size)
    assert sent < size / 2  # the kernel's buffers are full, and the relay holds no more
    proxy.writer.transport.resume_reading()  # type: ignore[attr-defined]

    async with asyncio.TaskGroup() as group:
        group.create_task(client.send(b"a" * (size - sent)))
        received = 0
        while received < size:
            received += len(await proxy.reader.read(1 << 20))


async def test_an_answer_flows_only_as_fast_as_the_client_reads(client: Wire, upstream: Upstream) -> None:
    size = 64 * 1024 * 1024
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    await proxy.send(head)
    assert await proxy.stuff(size) < size / 2


async def test_connections_over_the_limit_get_503(listener: socket.socket, upstream: Upstream) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_of(listener)) for _ in range(connections.CONNECTIONS)]
        await clients[-1].send(GET)
        await upstream.accepted()
        async with client_of(listener) as refused:
            assert (await refused.rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        clients[0].close()

        async def is_served() -> bool:
            async with client_of(listener) as other:
                await other.send(GET)
                return not (await other.head()).startswith(b"HTTP/1.1 503 ")

        async def answered() -> None:
            proxy = await upstream.accepted()
            await proxy.head()
            await proxy.send(OK)

        async with asyncio.TaskGroup() as group:
            group.create_task(answered())
            await eventually(is_served)


async def test_listeners_share_the_open_files_of_their_process(upstream: Upstream) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 8
    async with AsyncExitStack() as stack:
        listeners = [listening() for _ in range(4)]
        for one in listeners:
            await stack.enter_async_context(model_relay(one, upstream.url, KEY))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * len(listeners) * count, hard))
        for one in listeners:
            clients = [await stack.enter_async_context(client_of(one)) for _ in range(count)]
            await clients[-1].send(GET)
            await upstream.accepted()
            async with client_of(one) as refused:
                assert (await refused.rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")


async def test_idle_connections_end_and_waiting_ones_do_not(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)
    monkeypatch.setattr(relay, "IDLE_S", 0.1)
    listener = listening()
    async with (
        model_relay(listener, upstream.url, KEY),
        client_of(listener) as silent,
        client_of(listener) as slow,
        client_of(listener) as waiting,
    ):
        await slow.send(b"GET / HT")
        await waiting.send(GET)
        proxy = await upstream.accepted()
        await proxy.head()
        assert await silent.is_gone()
        assert await slow.is_gone()
        await proxy.send(OK)
        assert await waiting.exactly(len(OK)) == OK
        assert await waiting.is_gone()
        assert await proxy.is_gone()


async def test_parts_are_sent_at_once(listener: socket.socket, client: Wire, upstream: Upstream) -> None:
    """Without TCP_NODELAY on both of its sockets, each part of a stream would wait 40 ms for an acknowledgement."""
    await client.send(GET)
    proxy = await upstream.accepted()
    await proxy.head()
    ports = {client.writer.get_extra_info("sockname")[1], proxy.writer.get_extra_info("sockname")[1]}
    held = [
        transport.get_extra_info("socket")
        for transport in list(asyncio.get_running_loop()._transports.values())  # type: ignore[attr-defined]
    ]
    of_relay = [
        found for found in held if found.getpeername()[1] in ports and found.getsockname()[1] not in {upstream.port}
    ]
    assert len(of_relay) == 2
    assert all(found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for found in of_relay)


async def test_at_its_end_no_connection_is_left_and_the_port_is_closed(upstream: Upstream) -> None:
    listener = listening()
    address = listener.getsockname()
    async with AsyncExitStack() as stack:
        async with model_relay(listener, upstream.url, KEY):
            clients = [await stack.enter_async_context(client_of(listener)) for _ in range(3)]
            for client in clients[1:]:
                await client.send(GET)
            proxies = [await upstream.accepted() for _ in clients[1:]]
            await proxies[0].head()
        for wire in (*clients, *proxies):
            assert await wire.is_gone()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("cell-")]
