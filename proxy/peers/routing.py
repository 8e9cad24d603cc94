"""A request's way to the proxy that owns its session: served here, forwarded once, or held until there is an owner to ask.

The wait happens inside the request, so its harness sees only a late answer: if an owner dies, or refuses because the live proxies have
just changed, it or its successor is asked again. Repeating is harmless: a call that the first owner put on the log is superseded there by
the call that was answered, and the builder masks it. `proxy/peers/route.py` holds the states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import Refusal, RefusalError
from proxy.metrics import ProxyMetrics
from proxy.peers.forwarding import PeerError
from proxy.peers.ownership import Ownership, Peer
from proxy.peers.route import ENDS, Event, Route, State, advance
from proxy.session.claim_cache import ClaimCache, OwnerChangedError
from proxy.session.claim_state import ClaimState
from proxy.session.endings import Ending
from proxy.session.reply import SharedCalls
from topics.environment.keys import KeyClaims
from topics.waiting.first_done import first_done

AGAIN_S = 0.25
"""Pause between two tries while nothing changes: perhaps only the other proxy hasn't read of a change yet."""
RETRY_AFTER_S = 2

Serve = Callable[[ClaimState], SharedCalls]
Send = Callable[[Peer], Awaitable[bytes]]


class MisdirectedError(Exception):
    """A forwarded request whose session this proxy doesn't own."""


@dataclass(frozen=True)
class Router:
    """The objects that all routed requests share."""

    ownership: Ownership
    claims: ClaimCache
    metrics: ProxyMetrics


class RoutedReply:
    """The reply to one request that can't be served at once."""

    def __init__(self, router: Router, key: KeyClaims, request: ChatRequest, serve: Serve, send: Send | None) -> None:
        """`serve` starts the calls here, `send` asks another proxy; None for a request that another proxy has sent here."""
        self._router = router
        self._key = key
        self._request = request
        self._serve = serve
        self._send = send
        self._calls: SharedCalls | None = None
        self._forwarded = b""
        """Another proxy's answer."""
        self._refusal: RefusalError | None = None
        self._ended: Ending | None = None
        self.done = asyncio.get_running_loop().create_task(self._run(), name="route")

    def join(self) -> None:
        """Does nothing: equal requests meet at the owner."""

    def leave(self, *, delivered: bool) -> None:
        """The request ended."""
        self.done.cancel()
        if self._calls is not None:
            self._calls.leave(delivered=delivered)

    def end(self, reason: Ending) -> None:
        """Ends the calls, or the wait for them."""
        if self._calls is not None:
            self._calls.end(reason)
        elif not self.done.done():
            self._ended = reason
            self.done.cancel()

    def render(self, dialect: Dialect, request: ChatRequest) -> bytes:
        """The answer as it leaves, once done. Raises RefusalError, MisdirectedError."""
        if self.done.cancelled():
            raise (self._ended or Ending.STOPPED).refusal
        match self.done.result():
            case State.MISDIRECTED:
                raise MisdirectedError
            case State.GIVEN_UP:
                raise RefusalError(
                    Refusal.UNAVAILABLE,
                    "the proxy that serves this session can't be reached; try again",
                    retry_after_s=RETRY_AFTER_S,
                )
            case _ if self._refusal is not None:
                raise self._refusal.copy()
            case _:
                return self._forwarded if self._calls is None else self._calls.render(dialect, request)

    async def _run(self) -> State:
        metrics, now = self._router.metrics, asyncio.get_running_loop().time
        route = Route()
        while route.state not in ENDS:
            try:
                event = await self._step(route.state)
            except OwnerChangedError:
                event = Event.OWNER_CHANGED
            except RefusalError as refused:
                self._refusal = refused.copy()
                event = Event.ENDED
            except PeerError as failure:
                metrics.forwarded.labels(failure.reason).inc()
                event = Event.CONNECTION_CUT if failure.reason == "cut" else Event.PEER_FAILED
            before, route = route, advance(route, event, now())
            if route.held_until is not None and route.held_until != before.held_until:
                metrics.held.inc()
        if route.state is State.MISDIRECTED:
            metrics.misdirected.inc()
        return route.state

    async def _step(self, state: State) -> Event:
        match state:
            case State.SERVING:
                return await self._serve_here()
            case State.FORWARDING:
                return await self._forward()
            case State.HELD:
                await first_done(self._change, timeout_s=AGAIN_S)
                return Event.WOKEN
            case _:
                return self._look()

    def _look(self) -> Event:
        ownership = self._router.ownership
        self._change = ownership.next_change()
        self._owner = ownership.owner_of(self._key.session_id)
        if ownership.is_mine(self._key.session_id):
            return Event.OWNED_HERE
        if self._send is None:
            return Event.NOT_OURS
        return Event.UNOWNED if self._owner is None else Event.OWNED_BY_PEER

    async def _serve_here(self) -> Event:
        """Returns when the calls are done. Raises RefusalError, OwnerChangedError."""
        claim = await self._router.claims.ready_for(self._key, self._request)
        # Nothing is awaited from here until the calls exist, so that a key that closes finds its calls.
        if not self._router.ownership.is_mine(self._key.session_id):
            raise OwnerChangedError
        self._calls = self._serve(claim)
        self._calls.join()
        await asyncio.wait([self._calls.done])
        return Event.ENDED

    async def _forward(self) -> Event:
        """Returns when the owner has answered. Raises RefusalError, PeerError."""
        assert self._send is not None
        assert self._owner is not None
        self._forwarded = await self._send(self._owner)
        self._router.metrics.forwarded.labels("answered").inc()
        return Event.ENDED
