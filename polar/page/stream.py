"""`GET /api/stream`: changed rows and new figures, as Server-Sent Events.

A stream has no queue. It asks for what changed since its last message when that message was written, so a slow client gets fewer messages
with the newest state, and one that reads nothing for a minute is dropped.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator

import msgspec
from aiohttp import web

from polar.event_streams import PING_S, EventStreams
from polar.page.answers import Overview, SessionChanges, overview
from polar.page.following import Following, Looking
from proxy.control.api import ControlError
from topics.log.kafka import KafkaError
from topics.types.errors import NotReadyError

ROWS_S = 0.25
"""Between two looks for changed rows."""
OVERVIEW_S = 2.0
ROWS = 1000
"""Rows in a message; the others follow in the next."""
MINUTES = 2
"""Minutes of each curve in a message: older ones don't change."""
STREAMS = 32
"""Streams at once. A browser has one for each open page."""


class Streams(EventStreams):
    """The open streams of one page."""

    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    async def stream(self, request: web.Request, since: int | None) -> web.StreamResponse:
        """Answer with a stream until the client leaves. `since`: the version of the rows that it has; None: the current one."""
        if len(self) >= STREAMS:
            raise ControlError(503, "too_many", f"{STREAMS} pages are open already; close one")
        async with self._following.looking() as looking:
            return await self.serve(request, frames(looking, since))


async def frames(looking: Looking, since: int | None) -> AsyncGenerator[bytes]:
    """The messages of one stream, without end. Ends if Kafka can't be read any longer."""
    version = looking.sessions.version if since is None else since
    shown_at, sent_at = -math.inf, time.monotonic()
    while True:
        frame = None
        rows, version = looking.sessions.changed_since(version, ROWS)
        now = time.monotonic()
        if rows:
            frame = _frame("sessions", SessionChanges(rows, version))
        if now - shown_at >= OVERVIEW_S:
            try:
                figures: Overview = overview(looking, MINUTES)
            except (NotReadyError, KafkaError):
                return
            if frame is not None:
                yield frame
            frame, shown_at = _frame("overview", figures), now
        if frame is None and now - sent_at >= PING_S:
            frame = _frame("ping", {})
        if frame is not None:
            yield frame
            sent_at = now
        await asyncio.sleep(ROWS_S)


def _frame(event: str, value: object) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
