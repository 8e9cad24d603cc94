"""The way from a cell to named hosts: a proxy on a socket inside that connects to the hosts of `runtime.allowed_hosts` and to no other.

Programs use it by HTTPS_PROXY and HTTP_PROXY: CONNECT opens a tunnel, and a request for an absolute `http://` URL is led on, one to a
connection. Anything else gets 403 with a body that names the host and the setting. `topics/types/allowed_hosts.py` has the rules.

Names are resolved here, outside of the cell, once: a connection goes to an address that was judged, so a name that resolves to something
else a moment later (DNS rebinding) gains nothing. An address of this machine itself is reached only by an entry that is that address.

A host is allowed with all that it serves. Servers of many sites (CDNs) answer for another of them if a client names that one inside of its
TLS or HTTP; a proxy that doesn't open TLS can't see it.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from ipaddress import ip_address

import structlog

from consumers.runtimes.cell.connections import CONNECT_S, CellConnection, Connections, Outer, cause_of, serving
from consumers.runtimes.cell.http_requests import RequestHead, RequestRefusedError, bad_request
from topics.types.allowed_hosts import Address, AllowedHost, address_of, canonical_host, entry_for, split_port

IDLE_S = 300.0
"""Without a byte either way: longer than package indexes take to answer."""
RESOLVERS = 4
"""Look-ups at a time, in threads of their own: the event loop's are the worker's, and a slow name server must not occupy them."""
LOGGED = 1000
"""Decisions of one proxy that are logged, each; later ones are counted. A program in a cell may try without end."""
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
ABSOLUTE = re.compile(rb"http://(?P<authority>[^/?#@\\]+)(?P<target>[/?][!\"$-\[\]-~]*)?", re.IGNORECASE)
"""A request's target, without user and password, fragment and backslash."""

log = structlog.get_logger(__name__)


class Allowlist:
    """The allowed hosts, and the log of decisions."""

    def __init__(self, hosts: Sequence[str], resolvers: ThreadPoolExecutor) -> None:
        """Raises ValueError for an entry that can't be read."""
        self._entries = [AllowedHost.parse(host) for host in hosts]
        self._resolvers = resolvers
        self._decisions = 0

    def entry(self, host: str, port: int) -> AllowedHost:
        """The entry that allows a canonical host. Raises RequestRefusedError (403)."""
        entry = entry_for(self._entries, host, port)
        if entry is None:
            raise self._refusal(host, port, f"{host}:{port} is not in runtime.allowed_hosts")
        return entry

    async def addresses(self, entry: AllowedHost, host: str, port: int) -> list[Address]:
        """The addresses at which a host may be reached. Raises RequestRefusedError (403) if there is none, OSError for an unknown name."""
        literal = address_of(host)
        found = [literal] if literal else await self._resolved(host, port)
        allowed = [address for address in found if entry.allows_address(address) and (literal or not _is_own(address))]
        if not allowed:
            shown = ", ".join(map(str, found[:4]))
            raise self._refusal(
                host,
                port,
                f"{host} resolves to {shown}, which isn't public: an entry of runtime.allowed_hosts that is the address itself allows any, "
                f"and {host}!private allows private ones",
            )
        self._decided(host, port, allowed=True)
        return allowed

    async def _resolved(self, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        # A link-local IPv6 address comes with its interface, which `reach_of` doesn't need to refuse it.
        return list(dict.fromkeys(ip_address(str(answer[4][0]).partition("%")[0]) for answer in found))

    def _refusal(self, host: str, port: int, message: str) -> RequestRefusedError:
        self._decided(host, port, allowed=False)
        return RequestRefusedError(403, "Not in runtime.allowed_hosts", message)

    def _decided(self, host: str, port: int, *, allowed: bool) -> None:
        self._decisions += 1
        if self._decisions <= LOGGED:
            log.info("connection from a cell", action="cell.connect", host=host, port=port, allowed=allowed)

    def finish(self) -> None:
        """Log how many decisions were not logged."""
        if self._decisions > LOGGED:
            log.warning("too many connections to log", action="cell.connects", decisions=self._decisions, logged=LOGGED)


class AllowlistConnection(CellConnection):
    """A connection from the cell, and the one to the host of its first request."""

    def __init__(self, connections: Connections, allowlist: Allowlist) -> None:
        super().__init__(connections)
        self._allowlist = allowlist
        self._is_begun = False
        self._is_tunnel = False
        self._is_answered = False
        self._has_outer_eof = False
        """The other side of the tunnel sends nothing more."""

    @property
    def patience_s(self) -> float:
        return IDLE_S

    def request_begun(self, head: RequestHead) -> None:
        if self._is_begun:
            raise bad_request("one request is served on a connection")
        self._is_tunnel = head.method == b"CONNECT"
        host, port, lines = connect_target(head) if self._is_tunnel else plain_request(head)
        entry = self._allowlist.entry(host, port)
        self._is_begun = True
        self.open(lambda: self._connect(entry, host, port))
        self.send_out(lines)

    async def _connect(self, entry: AllowedHost, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._allowlist.addresses(entry, host, port)
            for left, address in enumerate(addresses, 1 - len(addresses)):
                try:
                    async with asyncio.timeout(
                        CONNECT_S / len(addresses)
                    ):  # one that is silent leaves time for the others
                        await self._loop.create_connection(lambda: Outer(self), str(address), port)
                    return
                except OSError:
                    if not left:
                        raise
        except TimeoutError as error:
            raise RequestRefusedError(504, "Gateway Timeout", f"{host}:{port}: {cause_of(error)}") from None
        except OSError as error:
            raise RequestRefusedError(502, "Bad Gateway", f"{host}:{port}: {cause_of(error)}") from None

    def outer_made(self, outer: Outer) -> None:
        if self._is_tunnel:
            self.send_in(ESTABLISHED)
        super().outer_made(outer)

    def refuse(self, refused: RequestRefusedError) -> None:
        if self._is_answered:
            self.abort()
        elif self._reader.is_within or not self._is_begun:
            self.answer_and_end(refused)
        # Otherwise it came behind the first request, whose answer is still to come: nothing is served there.

    def outer_received(self, data: bytes) -> None:
        if not self._is_ending:
            self._is_answered = True
            self.send_in(data)

    def outer_eof(self) -> None:
        if self._is_tunnel and not self._has_eof and not self._is_ending:
            self._has_outer_eof = True
            self._transport.write_eof()
        else:
            self.end()

    def outer_lost(self) -> None:
        self.end()

    def eof_received(self) -> bool:
        is_half_closed = self._is_tunnel and not self._is_ending and not self._has_outer_eof
        if not is_half_closed or self._outer is None:
            return super().eof_received()
        self._has_eof = True
        self._outer.transport.write_eof()
        return True


def connect_target(head: RequestHead) -> tuple[str, int, bytes]:
    """Canonical host, port, and what is sent on first: nothing. Raises RequestRefusedError."""
    host, port = _authority(head.target)
    if port is None:
        raise bad_request("CONNECT needs a host and a port")
    return host, port, b""


def plain_request(head: RequestHead) -> tuple[str, int, bytes]:
    """Canonical host, port, and the head as it is led on. Raises RequestRefusedError."""
    absolute = ABSOLUTE.fullmatch(head.target)
    if absolute is None:
        raise bad_request("this is a proxy: expected CONNECT host:port, or an absolute http:// URL without a user")
    host, port = _authority(absolute["authority"])
    target = absolute["target"] or b"/"
    if target.startswith(b"?"):
        target = b"/" + target
    lines = [
        b"%b %b HTTP/%b\r\nHost: %b\r\n" % (head.method, target, head.version, absolute["authority"]),
        *(line for _, line in head.headers),
        head.framing(),
        b"Connection: close\r\n\r\n",
    ]
    return host, port or 80, b"".join(lines)


def _authority(authority: bytes) -> tuple[str, int | None]:
    try:
        host, port = split_port(authority.decode("ascii"))
        return canonical_host(host), port
    except ValueError as error:
        raise bad_request(f"the request's host: {error}") from None


def _is_own(address: Address) -> bool:
    """Whether an address is this machine's: packets to it would leave from itself. No packet is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False  # no way to it: connecting will fail
        return ip_address(probe.getsockname()[0].partition("%")[0]) == address


@asynccontextmanager
async def allowlist_proxy(listener: socket.socket, hosts: Sequence[str]) -> AsyncIterator[None]:
    """Serve the proxy on `listener`, a listening socket, for the entries `hosts`; at the end it and all connections are closed.

    Raises ValueError for an entry that can't be read.
    """
    resolvers = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="cell-resolver")
    allowlist = Allowlist(hosts, resolvers)
    try:
        async with serving(listener, lambda connections: AllowlistConnection(connections, allowlist)):
            yield
    finally:
        resolvers.shutdown(wait=False, cancel_futures=True)
        allowlist.finish()
