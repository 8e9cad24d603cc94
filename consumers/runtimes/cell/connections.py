"""Connections that programs in a cell open, each led on over one connection out of the cell.

A `CellConnection` is the cell's side; an `Outer` is the side outside, opened once a request says where to. Bytes flow both ways with
back-pressure: while one side doesn't read, nothing is read from the other. Where a request goes, the subclass decides: `relay.py`,
`allowlist.py`.

Invariants: at most CONNECTIONS of a listener are open at once, and fewer where this process may open few files. Each ends when nothing has
moved on it for its `patience_s`, the end of one side ends the other, and none is left when `serving` ends.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, cast

from consumers.runtimes.cell.http_requests import RequestHead, RequestReader, RequestRefusedError, error_answer

CONNECTIONS = 64
"""How many one listener has open at most; further ones get 503. A session may make as many calls at once
(`topics.environment.keys.CONCURRENT_CALLS`)."""
LEAST_CONNECTIONS = 4
"""How many each listener may have open, however few files this process may open."""
READ_BYTES = 64 * 1024
"""At once. It bounds for how long one connection keeps the event loop: 64 KiB of chunks of one byte take 5 ms to read."""
CONNECT_S = 10.0
"""For one connection out of the cell, its look-up and its TLS handshake included."""
ENDING_S = 10.0
"""For the cell to read what was written last; what it still sends meanwhile is dropped, so that it reads the answer."""
SWEEP_S = 2.0
"""Between two looks at connections on which nothing moves."""
STOP_S = 2.0
"""For connections to end once they are aborted, which takes one turn of the event loop."""
FULL = error_answer(503, "Service Unavailable", "too many connections are open in this cell; close some, or wait")


class CellConnection(asyncio.BufferedProtocol):
    """One connection from a cell. Subclasses receive its requests as a `RequestSink`."""

    _transport: asyncio.Transport

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.buffer = connections.buffer
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self)
        self._outer: Outer | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        """For the outer side, while that is being opened."""
        self._outer_is_full = False
        self._has_eof = False
        """The cell sends nothing more."""
        self._is_ending = False
        self.moved_at = self._loop.time()
        """When bytes last came, on either side."""

    @property
    @abstractmethod
    def patience_s(self) -> float:
        """How long nothing may move."""

    @abstractmethod
    def request_begun(self, head: RequestHead) -> None:
        """As `RequestSink`."""

    def request_ended(self) -> None:
        """As `RequestSink`."""

    def body_received(self, data: bytes) -> None:
        """As `RequestSink`: bodies are led on."""
        self.send_out(data)

    @abstractmethod
    def outer_received(self, data: bytes) -> None:
        """The outer side sent bytes."""

    @abstractmethod
    def outer_eof(self) -> None:
        """The outer side sends nothing more."""

    def outer_lost(self) -> None:
        """The outer side is closed."""
        self.outer_eof()

    def refuse(self, refused: RequestRefusedError) -> None:
        """A request can't be read, or isn't led on."""
        self.answer_and_end(refused)

    def answer_and_end(self, refused: RequestRefusedError) -> None:
        """Write the answer of ours, and end."""
        self.send_in(refused.answer())
        self.end()

    def open(self, opening: Callable[[], Awaitable[None]]) -> None:
        """Run `opening`, which connects an `Outer` of this connection or raises RequestRefusedError; the cell's bytes wait for it."""
        self._opening = self._connections.start(self._open(opening))
        self._read_or_pause()

    async def _open(self, opening: Callable[[], Awaitable[None]]) -> None:
        refused = None
        try:
            await opening()
        except RequestRefusedError as error:
            refused = error
        self._opening = None
        self._waiting.clear()
        if refused is not None:
            self.answer_and_end(refused)
        self._read_or_pause()

    def send_out(self, data: bytes) -> None:
        """Write to the outer side, once it is there."""
        if self._outer is not None:
            self._outer.transport.write(data)
        else:
            self._waiting.append(data)

    def outer_made(self, outer: Outer) -> None:
        """The outer side is connected."""
        self._outer = outer
        if self._waiting:
            outer.transport.write(b"".join(self._waiting))

    def send_in(self, data: bytes) -> None:
        """Write to the cell."""
        self._transport.write(data)

    def end(self) -> None:
        """Let the cell read what was written, and close both sides."""
        if self._is_ending or self._transport.is_closing():
            return
        self._is_ending = True
        self.moved_at = self._loop.time()
        self._abort_outer()
        if self._has_eof:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._read_or_pause()

    def abort(self) -> None:
        """Close both sides at once."""
        self._transport.abort()
        self._abort_outer()

    def _abort_outer(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._outer is not None:
            self._outer.transport.abort()

    def abort_if_idle(self, now: float) -> None:
        """Close both sides if nothing has moved for too long."""
        if now - self.moved_at > (ENDING_S if self._is_ending else self.patience_s):
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # asyncio sets it only where the socket knows its protocol, which depends on how the listener was made. Without it, the parts of a
        # stream wait for acknowledgements: 512 events took 44 ms instead of 3.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._connections.add(self):
            self._is_ending = True
            self.send_in(FULL)
            self._transport.close()

    def get_buffer(self, _: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, size: int) -> None:
        if self._is_ending:
            return
        self.moved_at = self._loop.time()
        try:
            self._reader.feed(bytes(self.buffer[:size]))
        except RequestRefusedError as refused:
            self.refuse(refused)

    def eof_received(self) -> bool:
        self._has_eof = True
        return False  # as HTTP servers do: a client that has closed its side reads no answer

    def pause_writing(self) -> None:
        if self._outer is not None:
            self._outer.transport.pause_reading()

    def resume_writing(self) -> None:
        self.moved_at = self._loop.time()
        if self._outer is not None:
            self._outer.transport.resume_reading()

    def outer_full(self, is_full: bool) -> None:
        """Whether the outer side doesn't read."""
        self.moved_at = self._loop.time()
        self._outer_is_full = is_full
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        if self._is_ending or (self._opening is None and not self._outer_is_full):
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_ending = True
        self._abort_outer()
        self._connections.remove(self)


class Outer(asyncio.BufferedProtocol):
    """The side outside of the cell."""

    transport: asyncio.Transport

    def __init__(self, owner: CellConnection) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._owner.outer_made(self)

    def get_buffer(self, _: int) -> memoryview:
        return self._owner.buffer

    def buffer_updated(self, size: int) -> None:
        self._owner.moved_at = self._loop.time()
        self._owner.outer_received(bytes(self._owner.buffer[:size]))

    def eof_received(self) -> bool:
        self._owner.outer_eof()
        return self.transport.can_write_eof()  # then the owner closes it, perhaps after what the cell still sends

    def connection_lost(self, _: Exception | None) -> None:
        self._owner.outer_lost()

    def pause_writing(self) -> None:
        self._owner.outer_full(True)

    def resume_writing(self) -> None:
        self._owner.outer_full(False)


class Connections:
    """The open connections of one listener."""

    _listeners: ClassVar[int] = 0
    """How many listeners this process serves now."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Of all connections: what one read brings is passed on before the next."""
        self._open: set[CellConnection] = set()
        self._openings: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def add(self, connection: CellConnection) -> bool:
        """Whether there is room. A connection takes two open files. Those of all listeners together take at most half of the process's
        limit, or LEAST_CONNECTIONS each."""
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        share = open_files // 4 // Connections._listeners
        if len(self._open) >= min(CONNECTIONS, max(share, LEAST_CONNECTIONS)):
            return False
        self._open.add(connection)
        return True

    def remove(self, connection: CellConnection) -> None:
        """It has ended."""
        self._open.discard(connection)
        self._changed.set()

    def start(self, opening: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that opens a connection's outer side."""
        task = asyncio.get_running_loop().create_task(opening, name="cell-connect")
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)
        return task

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The listener takes part in the shares of all."""
        Connections._listeners += 1
        try:
            yield
        finally:
            Connections._listeners -= 1

    async def sweep(self) -> None:
        """Ends idle connections, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            for connection in list(self._open):
                connection.abort_if_idle(loop.time())

    async def stop(self) -> None:
        """Ends all connections, within STOP_S."""
        for connection in list(self._open):
            connection.abort()
        try:
            async with asyncio.timeout(STOP_S):
                while self._open:
                    self._changed.clear()
                    await self._changed.wait()
                await asyncio.gather(*self._openings, return_exceptions=True)
        except TimeoutError:
            pass


@asynccontextmanager
async def serving(listener: socket.socket, connection: Callable[[Connections], CellConnection]) -> AsyncIterator[None]:
    """Serve connections to `listener`, a listening socket of any network namespace; it is closed at the end, as all its connections are."""
    connections = Connections()
    loop = asyncio.get_running_loop()
    with connections.counted():
        server = await loop.create_server(lambda: connection(connections), sock=listener)
        sweeping = loop.create_task(connections.sweep(), name="cell-sweep")
        try:
            yield
        finally:
            server.close()
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            await connections.stop()


def cause_of(error: OSError) -> str:
    """Why a connection could not be made, without the address: a program in a cell needn't know where the proxy is."""
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_S:g} s"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason})"
    if isinstance(error, socket.gaierror):
        return "its name can't be resolved"
    return os.strerror(error.errno).lower() if error.errno else "no address of it can be reached"
