"""Calls over kept connections, cheap enough to leave the machine to what is measured, and how long they took."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

CALL_S = 60.0
"""For one answer."""
LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class CallFailedError(Exception):
    """An answer that isn't 200, or none; the message shows it."""


class Caller(asyncio.Protocol):
    """One kept connection to a server; one call at a time. Knows of HTTP/1.1 what the servers measured here send."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._whole = 0
        self._is_chunked = False
        self._told: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, url: str) -> Caller:
        """Opens the connection."""
        parts = urlsplit(url)
        assert parts.hostname, "a base URL"
        assert parts.port, "with its port"
        _, caller = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        return caller

    async def call(self, request: bytes) -> bytes:
        """The answer, head and all. Raises CallFailedError, TimeoutError."""
        loop = asyncio.get_running_loop()
        self._told = loop.create_future()
        late = loop.call_later(CALL_S, self._fail, TimeoutError(f"no answer within {CALL_S:.0f} s"))
        self._transport.write(request)
        try:
            return await self._told
        finally:
            late.cancel()

    def close(self) -> None:
        """Closes it."""
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(CallFailedError(f"the connection was closed: {exc}"))

    def data_received(self, data: bytes) -> None:
        self._held += data
        if not self._whole and not self._is_chunked:
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self._held, 0, end)
            self._is_chunked = length is None
            self._whole = end + 4 + int(length[1]) if length else 0
        if self._is_chunked:
            if not self._held.endswith(b"\r\n0\r\n\r\n"):
                return
        elif len(self._held) < self._whole:
            return
        answer = bytes(self._held)
        self._held.clear()
        self._whole, self._is_chunked = 0, False
        if self._told is None or self._told.done():
            return
        if answer.startswith(b"HTTP/1.1 200 "):
            self._told.set_result(answer)
        else:
            self._fail(CallFailedError(repr(answer[:400])))

    def _fail(self, error: Exception) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_exception(error)


async def timed(caller: Caller, request: bytes) -> float:
    """Seconds from the request to the last byte of its answer."""
    began = time.perf_counter()
    await caller.call(request)
    return time.perf_counter() - began


@dataclass
class Window:
    """What many callers at once were told in a while."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.latencies) / self.seconds


async def loaded(url: str, callers: int, sessions: Callable[[], Iterator[bytes]], seconds: float) -> Window:
    """Keeps so many callers busy, each with session after session of its own, for a while. Calls are counted as they end."""
    window = Window()
    began = time.perf_counter()
    ends = began + seconds

    async def work() -> None:
        caller = await Caller.connect(url)
        while True:
            for request in sessions():
                window.latencies.append(await timed(caller, request))
                if time.perf_counter() > ends:
                    caller.close()
                    return

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(work())
    window.seconds = time.perf_counter() - began
    return window
