"""Asks a broker for its cluster's metadata before any Kafka client runs: which nodes serve, and who leads each partition.

Calls block and open a connection each. Sources: the Kafka protocol guide (Metadata version 1, SaslHandshake 1, SaslAuthenticate 0).
"""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass

from polar.embedded.properties import NODE_USER, Security

ANSWER_S = 2.0
"""For a connection and for each answer; a serving broker on loopback needs milliseconds."""
METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 3, 17, 36
"""Kafka's API keys."""


@dataclass(frozen=True)
class Partition:
    """The nodes that hold one partition."""

    leader: int
    """Node id; negative: no leader."""
    replicas: frozenset[int]
    in_sync: frozenset[int]


@dataclass(frozen=True)
class Metadata:
    """A cluster as one of its brokers sees it."""

    brokers: frozenset[int]
    """Ids of the nodes that serve."""
    partitions: dict[tuple[str, int], Partition]
    """By topic and number."""


def metadata(port: int, security: Security | None) -> Metadata | None:
    """The metadata of the broker on 127.0.0.1:`port`; None if it doesn't answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as plain:
            if security is None:
                return _metadata(plain)
            connection = _unverified().wrap_socket(plain) if security.tls else plain
            with connection:
                if security.sasl:
                    _log_in(connection, security.node_password)
                return _metadata(connection)
    except (OSError, EOFError):
        return None


def _unverified() -> ssl.SSLContext:
    """TLS without verification: the broker is our own process on loopback, and the only secret sent is one that it already has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _log_in(connection: socket.socket, password: str) -> None:
    _ask(connection, SASL_HANDSHAKE, 1, struct.pack(">h", 5) + b"PLAIN")
    token = f"\0{NODE_USER}\0{password}".encode()
    _ask(connection, SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)


def _metadata(connection: socket.socket) -> Metadata:
    every_topic = struct.pack(">i", -1)
    answer = _Reader(_ask(connection, METADATA, 1, every_topic))
    brokers = []
    for _ in range(answer.int32()):
        brokers.append(answer.int32())
        answer.string(), answer.int32(), answer.string()  # host, port, rack
    answer.int32()  # the controller
    partitions = {}
    for _ in range(answer.int32()):
        answer.int16()
        name = answer.string()
        answer.take(1)
        for _ in range(answer.int32()):
            answer.int16()
            number, leader = answer.int32(), answer.int32()
            partitions[name, number] = Partition(leader, answer.ids(), answer.ids())
    return Metadata(frozenset(brokers), partitions)


def _ask(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    """Send one request without a client id; returns the body of the answer."""
    request = struct.pack(">hhih", key, version, 1, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)[4:]


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise EOFError("the broker closed the connection")
        found += more
    return found


class _Reader:
    """Decodes primitive types of Kafka's protocol, one after another."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, count: int) -> bytes:
        self._at += count
        return self._body[self._at - count : self._at]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def string(self) -> str:
        """A nullable string; null becomes the empty string."""
        return self.take(max(0, self.int16())).decode()

    def ids(self) -> frozenset[int]:
        return frozenset(self.int32() for _ in range(self.int32()))
