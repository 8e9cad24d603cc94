"""The hosts that a sandbox may reach: the entries of `runtime.allowed_hosts`, and how hosts and addresses are judged by them.

An entry is one of these, each with an optional port; without one, ports 443 and 80 are meant:

| entry | allows |
|---|---|
| `pypi.org`, `pypi.org:8443` | this name |
| `*.example.org` | every name below example.org, at any depth, and not example.org itself |
| `mirror.corp.example!private` | this name, also at a private address (10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7) |
| `10.0.0.7:8080`, `[fd00::7]` | this address, whatever it is |

A name is connected only to public addresses; with `!private` to private ones as well. Loopback, link-local (cloud metadata), multicast,
unspecified and reserved addresses are reached only by an entry that is that address. Names are ASCII (`xn--…` for others), compared
without case and without a final dot. An address has one spelling: four decimal numbers, or IPv6 in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

PORTS = frozenset({443, 80})
"""Of an entry without a port."""
NAME_CHARS = 253
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
"""A last label that makes a whole name an IPv4 address to some resolvers: 2130706433, 0x7f.1, 127.1 (WHATWG URL, "ends in a number")."""
PORT = re.compile(r"[0-9]{1,5}")
PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")))
METADATA = frozenset(map(ip_address, ("100.100.100.200", "fd00:ec2::254")))
"""Clouds' metadata servers in private networks (Alibaba, AWS); the usual one, 169.254.169.254, is link-local."""
UNICAST = ip_network("2000::/3")
"""The only IPv6 addresses that are assigned for global use (IANA)."""
NAT64 = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that a gateway translates to the IPv4 address in their last four bytes (RFC 6052)."""
Address = IPv4Address | IPv6Address


class Reach(Enum):
    """Who can be reached at an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    """The operator's own networks."""
    LOCAL = "local"
    """This machine, its link, many machines, or nobody."""


@dataclass(frozen=True)
class AllowedHost:
    """One entry."""

    host: str
    """As `canonical_host` returns it; of a wildcard, the name above."""
    port: int | None = None
    """None: any of PORTS."""
    is_wildcard: bool = False
    is_private: bool = False

    @classmethod
    def parse(cls, entry: str) -> AllowedHost:
        """Raises ValueError that says what is wrong."""
        text, mark, suffix = entry.partition("!")
        if mark and suffix != "private":
            raise ValueError(f"expected !private or nothing behind the host, got !{suffix}")
        host, port = split_port(text)
        is_wildcard = host.startswith("*.")
        host = canonical_host(host.removeprefix("*."))
        if address_of(host) and (is_wildcard or mark):
            raise ValueError("an address is allowed as it is, without *. and !private")
        return cls(host, port, is_wildcard, bool(mark))

    def allows(self, host: str, port: int) -> bool:
        """Whether a canonical host and a port are meant."""
        is_meant = host.endswith(f".{self.host}") if self.is_wildcard else host == self.host
        return is_meant and (port in PORTS if self.port is None else port == self.port)

    def allows_address(self, address: Address) -> bool:
        """Whether a host that this entry allows may be reached at an address that it resolves to."""
        if literal := address_of(self.host):
            return address == literal
        reach = reach_of(address)
        return reach is Reach.PUBLIC or (reach is Reach.PRIVATE and self.is_private)


def entry_for(entries: Sequence[AllowedHost], host: str, port: int) -> AllowedHost | None:
    """The entry that allows a canonical host and a port, one with `!private` first; None if there is none."""
    return max(
        (entry for entry in entries if entry.allows(host, port)), key=lambda entry: entry.is_private, default=None
    )


def split_port(text: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port` or `[address]:port`; the host as it is. Raises ValueError."""
    host, mark, digits = text.rpartition(":")
    if not mark or digits.endswith("]"):
        return text, None
    if not PORT.fullmatch(digits) or not 0 < int(digits) < 65536:
        raise ValueError(f"expected a port from 1 to 65535, got {digits[:20]!r}")
    return host, int(digits)


def canonical_host(text: str) -> str:
    """The one spelling of a host: a name in lower case without a final dot, or an address as `str(ip_address)`. Raises ValueError."""
    if text.startswith("[") and text.endswith("]"):
        return str(_unmapped(IPv6Address(_without_zone(text[1:-1]))))
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if NUMERIC.fullmatch(labels[-1]):
        return str(IPv4Address(host))
    if len(host) > NAME_CHARS or not all(map(LABEL.fullmatch, labels)):
        raise ValueError(
            f"expected a host name in ASCII (xn--… for others), an IPv4 address, or an IPv6 address in brackets, got {text[:100]!r}"
        )
    return host


def address_of(host: str) -> Address | None:
    """The address that a canonical host is; None for a name."""
    return ip_address(host) if ":" in host or NUMERIC.fullmatch(host.rpartition(".")[2]) else None


def reach_of(address: Address) -> Reach:
    """Who is reached at an address; of an IPv6 address that stands for an IPv4 address, who is reached at that."""
    address = _embedded(address)
    if address in METADATA:
        return Reach.LOCAL
    if any(address in network for network in PRIVATE if network.version == address.version):
        return Reach.PRIVATE
    is_unicast = address.version == 4 or address in UNICAST
    is_public = is_unicast and address.is_global and not address.is_multicast and not address.is_reserved
    return Reach.PUBLIC if is_public else Reach.LOCAL


def _embedded(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in NAT64:
        return IPv4Address(address.packed[-4:])
    return _unmapped(address.sixtofour or address)


def _unmapped(address: Address) -> Address:
    """An IPv4 address that is written as IPv6 is that IPv4 address to every system."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _without_zone(text: str) -> str:
    if "%" in text:
        raise ValueError("expected an IPv6 address without a zone")
    return text
