"""Server-Sent Events over aiohttp: streams that a server can end, and that a client which reads nothing can't keep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

PING_S = 15.0
"""Keep-alive of an idle stream: shorter than the idle limits of usual proxies."""
WRITE_S = 60.0
"""For a client to read one event: the buffers of its connection are full meanwhile."""
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStreams:
    """The open streams of a server."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, request: web.Request, frames: AsyncGenerator[bytes]) -> web.StreamResponse:
        """Answer with the frames until they end or the client leaves."""
        response = web.StreamResponse(headers=HEADERS)
        current = asyncio.current_task()
        assert current is not None, "a handler runs in a task"
        self._open.add(current)
        try:
            async with aclosing(frames):
                await response.prepare(request)
                async for frame in frames:
                    async with asyncio.timeout(WRITE_S):
                        await response.write(frame)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()  # an orderly end would wait for this client as well
        except ConnectionError:
            pass  # the client has left
        finally:
            self._open.discard(current)
        return response

    async def close(self, _: web.Application) -> None:
        """End all streams, so that the server can stop."""
        for stream in self._open:
            stream.cancel()
