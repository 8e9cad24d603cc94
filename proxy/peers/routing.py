"""A request's way to the proxy that owns its session: served here, forwarded once, or held until there is an owner to ask.

Waits with the request, so that its harness sees no more of it than a late answer: an owner that dies, or refuses because the live set has
just changed, is asked again or another in its place. Repeating is harmless: a call that the first owner had put on the log is superseded
there by the one that was answered, and the builder masks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from proxy.call import refusal_of_ending
from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import Refusal, RefusalError
from proxy.metrics import Metrics
from proxy.peers.forwarding import PeerError
from proxy.peers.ownership import Ownership, Peer
from proxy.session.claims import ClaimCache, ClaimState, OwnerChangedError
from proxy.session.endings import Ending
from proxy.session.reply import LocalReply
from topics.environment.keys import KeyClaims

HOLD_S = 10.0
"""For an owner to be found: a lost one's lease ends after 6 s, noticed with the next heartbeat."""
AGAIN_S = 0.25
"""Between two tries while nothing changes: the other proxy may be the one that hasn't read of the change yet."""
CUTS = 3
"""Connections that may die under one request: it may be what kills them."""
RETRY_AFTER_S = 2

Serve = Callable[[ClaimState], LocalReply]
Send = Callable[[Peer], Awaitable[bytes]]


class MisdirectedError(Exception):
    """A forwarded request whose session isn't this proxy's."""


class Router:
    """What every request's way needs."""

    def __init__(self, ownership: Ownership, claims: ClaimCache, metrics: Metrics) -> None:
        self.ownership = ownership
        self.claims = claims
        self.metrics = metrics


class RoutedReply:
    """One request that is not served at once: `reply.Reply`'s place is taken by this until there is one."""

    def __init__(self, routes: Router, key: KeyClaims, request: ChatRequest, serve: Serve, send: Send | None) -> None:
        """`serve` makes the reply here, `send` asks another proxy for it; None where another has sent it here."""
        self._routes = routes
        self._key = key
        self._request = request
        self._serve = serve
        self._send = send
        self._reply: LocalReply | None = None
        self._ended: Ending | None = None
        self.done = asyncio.get_running_loop().create_task(self._way(), name="route")

    @property
    def is_stream(self) -> bool:
        """Whether the answer is to leave as a stream."""
        return self._request.stream

    def join(self) -> None:
        """Nobody shares it: who repeats the request meets at the owner."""

    def leave(self, *, delivered: bool) -> None:
        """The request ended."""
        self.done.cancel()
        if self._reply is not None:
            self._reply.leave(delivered=delivered)

    def end(self, reason: Ending) -> None:
        """Ends the call, or the wait for it."""
        if self._reply is not None:
            self._reply.end(reason)
        elif not self.done.done():
            self._ended = reason
            self.done.cancel()

    def told(self, dialect: Dialect) -> bytes:
        """The answer as it leaves, once done. Raises RefusalError, MisdirectedError."""
        if self.done.cancelled():
            raise refusal_of_ending(self._ended or "stopped")
        told = self.done.result()
        if isinstance(told, Exception):
            raise told.copy() if isinstance(told, RefusalError) else MisdirectedError
        return told.told(dialect) if isinstance(told, LocalReply) else told

    async def _way(self) -> LocalReply | bytes | RefusalError | MisdirectedError:
        ownership, metrics = self._routes.ownership, self._routes.metrics
        clock = asyncio.get_running_loop().time
        gives_up_at: float | None = None
        cuts = 0
        while True:
            change = ownership.next_change()
            owner = ownership.owner_of(self._key.session_id)
            try:
                if ownership.is_mine(self._key.session_id):
                    return await self._served()
                if self._send is None:
                    metrics.misdirected.inc()
                    return MisdirectedError()
                if owner is not None:
                    answer = await self._send(owner)
                    metrics.forwarded.labels("answered").inc()
                    return answer
            except OwnerChangedError:
                continue
            except RefusalError as refused:
                return refused.copy()
            except PeerError as failure:
                metrics.forwarded.labels(failure.reason).inc()
                if failure.reason == "cut":
                    cuts += 1
                    gives_up_at = None
            if gives_up_at is None:
                metrics.held.inc()
                gives_up_at = clock() + HOLD_S
            if clock() > gives_up_at or cuts > CUTS:
                return RefusalError(
                    Refusal.UNAVAILABLE,
                    "the proxy that serves this session can't be reached; try again",
                    retry_after_s=RETRY_AFTER_S,
                )
            await _within(change, AGAIN_S)

    async def _served(self) -> LocalReply:
        """The reply, once done. Raises RefusalError, OwnerChangedError."""
        claim = await self._routes.claims.ready_for(self._key, self._request)
        # From here to the reply nothing is awaited, so that a key that closes finds its calls.
        if not self._routes.ownership.is_mine(self._key.session_id):
            raise OwnerChangedError
        self._reply = self._serve(claim)
        self._reply.join()
        await asyncio.wait([self._reply.done])
        return self._reply


async def _within(change: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await change.wait()
    except TimeoutError:
        pass
