"""The ports that a proxy listens on, and the address at which other proxies reach it.

A socket is bound before anything listens on it, so that its port is known first. Several processes of one host can share a port: the kernel
distributes connections among them. Each process then has a second port of its own for the other proxies.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

from topics.types.errors import InputError


@dataclass(frozen=True)
class Binding:
    """An address to listen on; port 0 takes a free port."""

    host: str
    port: int
    shared: bool = False
    """Other processes may listen on the same port."""


def bound(binding: Binding) -> socket.socket:
    """A bound socket that doesn't listen yet. Raises OSError if the port is in use."""
    family, kind, _, _, address = socket.getaddrinfo(binding.host, binding.port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if binding.shared else socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def url(listener: socket.socket) -> str:
    """The base URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def require_address(host: str, advertise: str | None, callers: str = "the other proxies") -> None:
    """Raises InputError if `host` is a wildcard address and no advertised URL tells the callers how to reach it."""
    try:
        is_any = ip_address(host).is_unspecified
    except ValueError:
        is_any = host == ""
    if is_any and advertise is None:
        raise InputError(
            "--host",
            host,
            f"is every address of this host, and {callers} need one: add --advertise http://HOST:PORT",
        )
