"""The proxy to allowed hosts: who is connected, to which address, and how each end of a connection ends the other.

Servers are raw sockets on loopback. `Internet` stands in for what lies outside of this machine: the name server, and the way to addresses
that aren't loopback, which all lead to one socket here.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from consumers.runtimes.cell import allowlist, connections
from consumers.runtimes.cell.allowlist import allowlist_proxy, plain_request
from consumers.runtimes.cell.http_requests import RequestHead, RequestReader, RequestRefusedError
from tests.consumers.runtimes.cell.wires import Upstream, client_of, listening, upstream_at
from topics.types.allowed_hosts import canonical_host


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with upstream_at() as upstream:
        yield upstream


@dataclass
class Internet:
    """Names with their addresses, and the addresses to which connections were made."""

    names: dict[str, list[str]] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)
    connected: list[tuple[str, int]] = field(default_factory=list)


@pytest.fixture
async def internet(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Internet:
    internet = Internet()
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        internet.looked_up.append(host)
        if host not in internet.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in internet.names[host]]

    async def create_connection(protocol: Any, host: str, port: int, **options: Any) -> Any:
        if host == "127.0.0.1":
            return await connect(protocol, host, port, **options)
        internet.connected.append((host, port))
        return await connect(protocol, "127.0.0.1", upstream.port)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "create_connection", create_connection)
    return internet


async def refusal(listener: socket.socket, request: bytes) -> tuple[int, str, str]:
    """Status, reason and message of an answer of the proxy's own."""
    async with client_of(listener) as client:
        await client.send(request)
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        _, status, reason = head.split(b"\r\n")[0].decode().split(" ", 2)
        return int(status), reason, json.loads(body)["error"]["message"]


async def test_a_tunnel_to_an_allowed_address_passes_bytes_both_ways(upstream: Upstream) -> None:
    listener = listening()
    async with allowlist_proxy(listener, [f"127.0.0.1:{upstream.port}"]), client_of(listener) as client:
        await client.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x\r\n\r\nearly" % upstream.port)
        assert await client.head() == b"HTTP/1.1 200 Connection established\r\n\r\n"
        server = await upstream.accepted()
        assert await server.exactly(5) == b"early"
        await server.send(b"\x16\x03GET / HTTP/1.1\r\n\r\n")
        assert await client.exactly(20) == b"\x16\x03GET / HTTP/1.1\r\n\r\n"
        await client.send(b"CONNECT x:1 HTTP/1.1\r\n\r\n")
        assert await server.head() == b"CONNECT x:1 HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize("is_first", ["client", "server"])
async def test_each_side_of_a_tunnel_may_end_first_and_the_other_still_sends(upstream: Upstream, is_first: str) -> None:
    listener = listening()
    async with allowlist_proxy(listener, [f"127.0.0.1:{upstream.port}"]), client_of(listener) as client:
        await client.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % upstream.port)
        await client.head()
        server = await upstream.accepted()
        first, second = (client, server) if is_first == "client" else (server, client)
        first.writer.write_eof()
        assert await second.rest() == b""
        await second.send(b"goodbye")
        assert await first.exactly(7) == b"goodbye"
        second.close()
        assert await first.is_gone()


async def test_an_aborted_tunnel_ends_on_the_other_side(upstream: Upstream) -> None:
    listener = listening()
    async with allowlist_proxy(listener, [f"127.0.0.1:{upstream.port}"]), client_of(listener) as client:
        await client.send(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % upstream.port)
        await client.head()
        (await upstream.accepted()).writer.transport.abort()
        assert await client.is_gone()


async def test_a_plain_request_is_led_on_in_origin_form_and_is_the_only_one(upstream: Upstream) -> None:
    listener = listening()
    authority = b"127.0.0.1:%d" % upstream.port
    async with allowlist_proxy(listener, [authority.decode()]), client_of(listener) as client:
        second = b"GET http://evil.org/ HTTP/1.1\r\n\r\n"
        await client.send(
            b"POST http://%b/a?b HTTP/1.1\r\nHost: evil.org\r\nProxy-Authorization: Basic eDp5\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}%b"
            % (authority, second)
        )
        server = await upstream.accepted()
        head = await server.head()
        assert head == (
            b"POST /a?b HTTP/1.1\r\nHost: %b\r\nX-A: b\r\nContent-Length: 2\r\nConnection: close\r\n\r\n" % authority
        )
        assert await server.exactly(2) == b"{}"
        answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nanswer"
        await server.send(answer)
        server.close()
        assert await client.rest() == answer
        assert upstream.connections == 1


async def test_a_host_that_is_not_allowed_gets_403_with_the_way_out_and_both_decisions_are_logged(
    upstream: Upstream, internet: Internet
) -> None:
    internet.names["pypi.org"] = ["151.101.0.223"]
    listener = listening()
    with capture_logs() as logs:
        async with allowlist_proxy(listener, ["pypi.org"]):
            for request, named in (
                (b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n", "evil.org:443"),
                (b"CONNECT pypi.org:22 HTTP/1.1\r\n\r\n", "pypi.org:22"),
                (b"GET http://Evil.org/x HTTP/1.1\r\n\r\n", "evil.org:80"),
                (b"CONNECT 151.101.0.223:443 HTTP/1.1\r\n\r\n", "151.101.0.223:443"),
            ):
                status, reason, message = await refusal(listener, request)
                assert (status, reason) == (403, "Not in runtime.allowed_hosts")
                assert message == f"{named} is not in runtime.allowed_hosts"
            assert not internet.looked_up
            async with client_of(listener) as client:
                await client.send(b"CONNECT PyPI.org.:443 HTTP/1.1\r\n\r\n")
                await client.head()
    decisions = [(e["host"], e["port"], e["allowed"]) for e in logs if e["action"] == "cell.connect"]
    assert decisions == [
        ("evil.org", 443, False),
        ("pypi.org", 22, False),
        ("evil.org", 80, False),
        ("151.101.0.223", 443, False),
        ("pypi.org", 443, True),
    ]
    assert internet.connected == [("151.101.0.223", 443)]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "0.0.0.0", "169.254.169.254", "10.0.0.7", "::ffff:127.0.0.1", "fe80::1%eth0", "::1"]
)
async def test_a_name_that_leads_inward_is_refused(internet: Internet, address: str) -> None:
    internet.names["rebound.org"] = [address]
    listener = listening()
    async with allowlist_proxy(listener, ["rebound.org"]):
        status, _, message = await refusal(listener, b"CONNECT rebound.org:443 HTTP/1.1\r\n\r\n")
    assert status == 403
    assert "rebound.org resolves to" in message
    assert "!private" in message
    assert not internet.connected


async def test_a_name_is_resolved_once_and_the_judged_address_is_connected(internet: Internet) -> None:
    internet.names["two.org"] = ["127.0.0.1", "151.101.0.223", "10.0.0.7"]
    listener = listening()
    async with allowlist_proxy(listener, ["*.org"]), client_of(listener) as client:
        await client.send(b"CONNECT two.org:443 HTTP/1.1\r\n\r\n")
        await client.head()
    assert (internet.looked_up, internet.connected) == (["two.org"], [("151.101.0.223", 443)])


async def test_a_private_mirror_is_reached_where_its_entry_says_so(internet: Internet) -> None:
    internet.names["mirror.corp"] = ["10.255.255.7"]
    listener = listening()
    async with allowlist_proxy(listener, ["mirror.corp!private"]), client_of(listener) as client:
        await client.send(b"CONNECT mirror.corp:443 HTTP/1.1\r\n\r\n")
        await client.head()
    assert internet.connected == [("10.255.255.7", 443)]


async def test_an_address_of_this_machine_is_not_reached_by_a_name(internet: Internet) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        own = probe.getsockname()[0]
    internet.names["self.corp"] = [own]
    listener = listening()
    async with allowlist_proxy(listener, ["self.corp!private"]):
        status, _, _ = await refusal(listener, b"CONNECT self.corp:443 HTTP/1.1\r\n\r\n")
    assert (status, internet.connected) == (403, [])


async def test_an_unknown_name_and_a_closed_port_are_502(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listening()
    async with allowlist_proxy(listener, ["nowhere.org"]):
        status, _, message = await refusal(listener, b"CONNECT nowhere.org:443 HTTP/1.1\r\n\r\n")
    assert (status, message) == (502, "nowhere.org:443: its name can't be resolved")
    monkeypatch.undo()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    listener = listening()
    async with allowlist_proxy(listener, [address]):
        status, _, message = await refusal(listener, f"CONNECT {address} HTTP/1.1\r\n\r\n".encode())
    assert (status, message) == (502, f"{address}: connection refused")


async def test_a_host_that_does_not_answer_is_504(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def never(protocol: Any, host: str, port: int, **options: Any) -> Any:
        if host == "127.0.0.1":
            return await connect(protocol, host, port, **options)
        return await asyncio.Event().wait()

    internet.names["slow.org"] = ["151.101.0.223", "151.101.0.224"]
    monkeypatch.setattr(allowlist, "CONNECT_S", 0.05)
    monkeypatch.setattr(loop, "create_connection", never)
    listener = listening()
    async with allowlist_proxy(listener, ["slow.org"]):
        status, _, message = await refusal(listener, b"CONNECT slow.org:443 HTTP/1.1\r\n\r\n")
    assert status == 504
    assert message.startswith("slow.org:443: no connection within")


async def test_an_address_that_is_silent_leaves_time_for_the_next(
    internet: Internet, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    internet.names["two.org"] = ["151.101.0.223", "151.101.0.224"]
    monkeypatch.setattr(allowlist, "CONNECT_S", 0.2)
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def first_is_silent(protocol: Any, host: str, port: int, **options: Any) -> Any:
        if host == "151.101.0.223":
            await asyncio.Event().wait()
        return await connect(protocol, host, port, **options)

    monkeypatch.setattr(loop, "create_connection", first_is_silent)
    listener = listening()
    async with allowlist_proxy(listener, ["two.org"]), client_of(listener) as client:
        await client.send(b"CONNECT two.org:443 HTTP/1.1\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 200 ")
    assert internet.connected == [("151.101.0.224", 443)]


@pytest.mark.parametrize(
    "request_line",
    [
        b"CONNECT pypi.org",
        b"CONNECT pypi.org:0",
        b"CONNECT pypi.org:99999",
        b"CONNECT 2130706433:443",
        b"CONNECT 0x7f.1:443",
        b"CONNECT 127.1:443",
        b"CONNECT 0177.0.0.1:443",
        b"CONNECT pypi%2eorg:443",
        b"GET http://pypi.org@evil.org/",
        b"GET http://u:p@pypi.org/",
        b"GET http://pypi.org\\@evil.org/",
        b"GET http:///x",
        b"GET https://pypi.org/",
        b"GET /x",
        b"GET //pypi.org/x",
        b"OPTIONS *",
    ],
)
async def test_odd_targets_get_400_and_no_connection(internet: Internet, request_line: bytes) -> None:
    internet.names["pypi.org"] = ["151.101.0.223"]
    listener = listening()
    async with allowlist_proxy(listener, ["pypi.org", "*.org", "127.0.0.1"]):
        status, _, _ = await refusal(listener, request_line + b" HTTP/1.1\r\n\r\n")
    assert (status, internet.looked_up, internet.connected) == (400, [], [])


@pytest.mark.parametrize(
    "target", [b"[::ffff:127.0.0.1]:443", b"[::FFFF:7f00:1]:443", b"[0:0:0:0:0:ffff:127.0.0.1]:443"]
)
async def test_a_mapped_address_is_the_address_that_it_stands_for(internet: Internet, target: bytes) -> None:
    listener = listening()
    async with allowlist_proxy(listener, ["*.org", "1.1.1.1"]):
        status, _, message = await refusal(listener, b"CONNECT %b HTTP/1.1\r\n\r\n" % target)
    assert (status, message) == (403, "127.0.0.1:443 is not in runtime.allowed_hosts")
    assert not internet.connected


async def test_idle_tunnels_end_and_nothing_is_left_at_the_end(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)
    monkeypatch.setattr(allowlist, "IDLE_S", 0.2)
    listener = listening()
    request = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % upstream.port
    async with allowlist_proxy(listener, [f"127.0.0.1:{upstream.port}"]):
        async with client_of(listener) as idle:
            await idle.send(request)
            assert await idle.is_gone()
        monkeypatch.undo()
        async with client_of(listener) as other:
            await other.send(request)
            await other.head()
    for _ in range(2):
        server = await upstream.accepted()
        assert await server.is_gone()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("cell-")]


async def test_decisions_over_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowlist, "LOGGED", 2)
    listener = listening()
    with capture_logs() as logs:
        async with allowlist_proxy(listener, []):
            for _ in range(5):
                await refusal(listener, b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n")
    assert [entry["action"] for entry in logs] == ["cell.connect", "cell.connect", "cell.connects"]
    assert logs[-1]["decisions"] == 5


async def test_an_entry_that_cannot_be_read_is_refused() -> None:
    with listening() as listener, pytest.raises(ValueError, match="expected a"):
        async with allowlist_proxy(listener, ["https://pypi.org"]):
            pass


@given(st.text(st.sampled_from("aZ.-_:[]%@/?#\\1x0"), min_size=1, max_size=12))
def test_a_plain_request_goes_to_the_host_that_its_host_header_names(authority: str) -> None:
    """Whatever the URL's spelling, the next server sees the host that was judged."""
    heads: list[RequestHead] = []

    class Sink:
        def request_begun(self, head: RequestHead) -> None:
            heads.append(head)

        def body_received(self, data: bytes) -> None: ...

        def request_ended(self) -> None: ...

    try:
        RequestReader(Sink()).feed(f"GET http://{authority}/x HTTP/1.1\r\nHost: other\r\n\r\n".encode())
        host, port, lines = plain_request(heads[0])
    except RequestRefusedError:
        return
    _, named = lines.decode().split("\r\n")[1].split(": ")
    name, _, digits = named.rpartition(":")
    if digits.endswith("]") or not name:
        name, digits = named, "80"
    assert (canonical_host(name), int(digits)) == (host, port)
    assert b"other" not in lines
