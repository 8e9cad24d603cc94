"""The ports that a proxy listens on: where harnesses come in, and at which address the other proxies find it.

A door has its port before anybody listens behind it, so that it can be named first. Several processes of one host share a door: the kernel
deals connections out among those that listen. Each then has a door of its own beside it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address

from topics.types.errors import InputError


@dataclass(frozen=True)
class Binding:
    """Where a port listens; port 0 takes a free one."""

    host: str
    port: int
    shared: bool = False
    """Other processes listen there, too."""


def bound(binding: Binding) -> socket.socket:
    """A socket that has its port and doesn't listen yet. Raises OSError for a port that is taken."""
    family, kind, _, _, address = socket.getaddrinfo(binding.host, binding.port, type=socket.SOCK_STREAM)[0]
    door = socket.socket(family, kind)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if binding.shared else socket.SO_REUSEADDR, 1)
        door.bind(address)
    except OSError:
        door.close()
        raise
    return door


def url(door: socket.socket) -> str:
    """Its base URL."""
    host, port = door.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def require_address(host: str, advertise: str | None) -> None:
    """Raises InputError where other proxies couldn't be told how to reach a door bound to `host`."""
    try:
        is_any = ip_address(host).is_unspecified
    except ValueError:
        is_any = host == ""
    if is_any and advertise is None:
        raise InputError(
            "--host",
            host,
            "is every address of this host, and the other proxies need one: say --advertise http://HOST:PORT",
        )
