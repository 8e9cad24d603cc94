"""Raw sockets at both ends of what is tested: a test writes each byte that client and server send, and reads each that arrives."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DEADLINE_S = 10.0
"""For what takes milliseconds on an idle machine."""

STALLED_S = 0.5
"""Loopback stalls for no such time while the other end reads."""


class Wire:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            self.writer.write(data)
            await self.writer.drain()

    async def stuff(self, size: int) -> int:
        """Send until the other end takes nothing more for STALLED_S, at most `size` bytes; the bytes handed over."""
        piece, sent = b"a" * 65536, 0
        try:
            while sent < size:
                self.writer.write(piece)
                sent += len(piece)
                async with asyncio.timeout(STALLED_S):
                    await self.writer.drain()
        except TimeoutError:
            pass
        return sent

    async def until(self, end: bytes) -> bytes:
        """What arrives up to `end`, with it."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readuntil(end)

    async def head(self) -> bytes:
        return await self.until(b"\r\n\r\n")

    async def exactly(self, size: int) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """What arrives until the other end sends nothing more."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read()

    async def is_gone(self) -> bool:
        """The other end has closed the connection, orderly or not; fails if it doesn't."""
        try:
            await self.rest()
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.writer.close()


class Upstream:
    """A server whose every byte a test writes."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[Wire] = asyncio.Queue()
        self.port = 0
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def accepted(self) -> Wire:
        """The next connection."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._accepted.get()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._accepted.put_nowait(Wire(reader, writer))


@asynccontextmanager
async def upstream_at(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    upstream = Upstream()
    wires: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wires.append(writer)
        await upstream.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for writer in wires:
            writer.transport.abort()


def listening() -> socket.socket:
    """A socket as the supervisor hands it over."""
    return socket.create_server(("127.0.0.1", 0))


@asynccontextmanager
async def client_of(listener: socket.socket) -> AsyncIterator[Wire]:
    """A connection to a listener."""
    async with asyncio.timeout(DEADLINE_S):
        wire = Wire(*await asyncio.open_connection(*listener.getsockname()))
    try:
        yield wire
    finally:
        wire.writer.transport.abort()
