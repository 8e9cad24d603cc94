"""The model API: the dialects' routes, and each request's way to a reply.

Detect the dialect (by path, then by headers) → authenticate → normalise → find the session's owner → call engine → capture → answer. Every
error leaves in the dialect's own form; no fault of ours becomes a bare 500.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
from aiohttp import web

from proxy.auth import Authenticator
from proxy.bodies import BODY_BYTES, body_of
from proxy.byte_budget import ByteBudget, Reservation
from proxy.call import Pipeline
from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect, Serves, Wire
from proxy.errors import EngineError, Refusal, RefusalError, refusal_of
from proxy.image_urls import ImageHosts
from proxy.intake import Intake
from proxy.metrics import ProxyMetrics
from proxy.peers import forwarding
from proxy.peers.forwarding import Forwarder, PeerError
from proxy.peers.ownership import Peer
from proxy.peers.routing import MisdirectedError, RoutedReply, Router
from proxy.refused_requests import RefusedRequests
from proxy.request_limits import require_head, require_values
from proxy.session.claim_state import ClaimState
from proxy.session.reply import SharedCalls
from proxy.session_key import KEY_PREFIX, PATH_PREFIX, key_of, path_of
from proxy.streaming import JSON, refusal_from, respond
from topics.environment.keys import KeyClaims
from topics.environment.redaction import redacted, redacted_bytes
from topics.types import last_call
from topics.types.last_call import LastCall

QUICK_BYTES = 1024 * 1024
"""Longer bodies are redacted and parsed in a thread: 60 MiB take tenths of a second."""
CALLS = 4096
"""Requests in flight; further ones get 429."""
RETRY_AFTER_S = 5
NO_RETRY = {"x-should-retry": "false"}
"""Keeps OpenAI's and Anthropic's clients from repeating a request after a 409."""
Handle = Callable[[web.Request, Dialect], Awaitable[web.StreamResponse]]


class ModelApi:
    """Turns requests into replies."""

    def __init__(
        self,
        dialects: Sequence[Dialect],
        authenticator: Authenticator,
        router: Router,
        forwarder: Forwarder,
        image_hosts: ImageHosts,
        budget: ByteBudget,
        pipeline: Pipeline,
        metrics: ProxyMetrics,
        refused: RefusedRequests,
    ) -> None:
        self._dialects = dialects
        self._authenticator = authenticator
        self._router = router
        self._forwarder = forwarder
        self._image_hosts = image_hosts
        self._budget = budget
        self._pipeline = pipeline
        self._intake = Intake(pipeline, metrics)
        self._metrics = metrics
        self._refused = refused
        self._replies: dict[int, SharedCalls | RoutedReply] = {}
        """Of the requests in flight, by the request's `id`."""
        self.draining = False
        """Calls under way go on; new ones go to other proxies, or get 429."""
        self._handles: dict[Serves, Handle] = {
            Serves.CALL: self._call,
            Serves.COUNT: self._count,
            Serves.MODELS: self._models,
            Serves.GREETING: self._greeting,
            Serves.UPGRADE: self._upgrade,
        }

    @property
    def replies(self) -> frozenset[SharedCalls | RoutedReply]:
        """The replies that requests in flight wait for."""
        return frozenset(self._replies.values())

    def application(self) -> web.Application:
        """The routes of all dialects, with and without a key in front of the path."""
        app = web.Application(client_max_size=BODY_BYTES)
        shared: dict[tuple[str, str], list[tuple[Dialect, Handle]]] = {}
        for dialect in self._dialects:
            for route in dialect.routes:
                served = (dialect, self._handles[route.serves])
                shared.setdefault((route.method, route.path), []).append(served)
        for (method, path), candidates in shared.items():
            for prefix in ("", PATH_PREFIX):
                app.router.add_route(method, prefix + path, self._handler(candidates))
        app.router.add_route("GET", last_call.PATH, self._handler([(self._dialects[0], self._last_call)]))
        unknown = self._handler([(dialect, self._unknown) for dialect in self._dialects])
        for pattern in (KEY_PREFIX + r"{path:(?:/[\s\S]*)?}", r"/{path:[\s\S]*}"):
            app.router.add_route("*", pattern, unknown)
        return app

    def _handler(
        self, candidates: Sequence[tuple[Dialect, Handle]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            dialect, handle = _detected(candidates, request)
            try:
                require_head(request)
                return await handle(request, dialect)
            except MisdirectedError:
                return forwarding.not_owner()
            except Exception as fault:
                if isinstance(fault, ConnectionError) and _is_gone(request):
                    # Nobody reads the answer. Of an exception aiohttp would make a cycle that holds the request.
                    return web.Response()
                return self._refusal(request, dialect, refusal_from(fault, dialect))

        return handler

    async def _call(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        key = self._authenticator.claims_of(key_of(request))
        with self._budget.reservation(key.claim_id) as reservation:
            return await self._reserved_call(request, dialect, key, reservation)

    async def _reserved_call(
        self, request: web.Request, dialect: Dialect, key: KeyClaims, reservation: Reservation
    ) -> web.StreamResponse:
        received_at = time.time()
        ownership = self._router.ownership
        is_alone = self.draining and ownership.owner_of(key.session_id) is None
        if is_alone or len(self._replies) >= CALLS:
            raise RefusalError(Refusal.OVERLOADED, "the proxy is busy; try again", retry_after_s=RETRY_AFTER_S)
        wire = await _wire_of(request, Serves.CALL, reservation)
        chat = await self._chat_of(dialect, wire)
        if is_forwarded := (as_of := self._forwarder.sender_as_of(request)) is not None:
            await ownership.caught_up(as_of)

        def serve(claim: ClaimState) -> SharedCalls:
            return self._intake.calls_for(
                dialect,
                claim,
                chat,
                request.headers,
                limits=key.limits,
                size=len(wire.body),
                received_at=received_at,
                is_forwarded=is_forwarded,
            )

        def send(peer: Peer) -> Awaitable[bytes]:
            return self._forwarder.send(peer, request, wire.body)

        # Nothing is awaited from here until the reply exists, so that a key that closes finds its calls.
        claim = self._router.claims.cached(key) if ownership.is_mine(key.session_id) else None
        reply: SharedCalls | RoutedReply = (
            RoutedReply(self._router, key, chat, serve, None if is_forwarded else send)
            if claim is None or claim.must_read_on(chat)
            else serve(claim)
        )
        self._replies[id(request)] = reply
        try:
            refused = partial(self._refused.add, request)
            return await respond(request, dialect, chat, reply, refused, whole=is_forwarded)
        finally:
            del self._replies[id(request)]

    async def _last_call(self, request: web.Request, _: Dialect) -> web.StreamResponse:
        """How the claim's last call ended; the session's owner knows."""
        key = self._authenticator.claims_of(key_of(request))
        ownership = self._router.ownership
        if is_forwarded := (as_of := self._forwarder.sender_as_of(request)) is not None:
            await ownership.caught_up(as_of)
        owner = ownership.owner_of(key.session_id)
        try:
            if ownership.is_mine(key.session_id):
                claim = self._router.claims.cached(key)
                answer = msgspec.json.encode(LastCall(moved=True) if claim is None else claim.last_call)
            elif is_forwarded:
                raise MisdirectedError
            elif owner is None:
                raise PeerError("lost")
            else:
                answer = await self._forwarder.send(owner, request, b"")
        except PeerError:
            raise RefusalError(
                Refusal.UNAVAILABLE, "the session's proxy can't be asked; try again", retry_after_s=RETRY_AFTER_S
            ) from None
        return web.Response(body=answer, headers=JSON)

    async def _count(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        key = self._authenticator.claims_of(key_of(request))
        await self._router.claims.require_open(key)
        try:
            with self._budget.reservation(key.claim_id) as reservation:
                chat = await self._chat_of(dialect, await _wire_of(request, Serves.COUNT, reservation))
                tokens = await self._pipeline.engines.for_model(chat.model).count_tokens(chat)
        except EngineError as fault:
            raise refusal_of(fault) from None
        return web.Response(body=dialect.count(tokens), headers=JSON)

    async def _chat_of(self, dialect: Dialect, wire: Wire) -> ChatRequest:
        is_quick = len(wire.body) <= QUICK_BYTES
        chat = dialect.parse(wire) if is_quick else await asyncio.to_thread(dialect.parse, wire)
        self._image_hosts.require(chat, wire.body)
        return chat

    async def _models(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        await self._router.claims.require_open(self._authenticator.claims_of(key_of(request)))
        engines, only = self._pipeline.engines, request.match_info.get("model")
        names = engines.models if only is None else [only]
        listed = dialect.models(await engines.contexts(names), only)
        return web.Response(body=listed, headers=JSON)

    async def _greeting(self, _: web.Request, __: Dialect) -> web.StreamResponse:
        return web.Response()

    async def _upgrade(self, _: web.Request, __: Dialect) -> web.StreamResponse:
        raise RefusalError(Refusal.UPGRADE, "WebSockets are not served here; use plain HTTP")

    async def _unknown(self, request: web.Request, _: Dialect) -> web.StreamResponse:
        raise RefusalError(Refusal.NOT_FOUND, f"nothing is served at {request.method} {path_of(request)[:200]}")

    def _refusal(self, request: web.Request, dialect: Dialect, refused: RefusalError) -> web.Response:
        is_forwarded = self._forwarder.sender_as_of(request) is not None
        if is_forwarded and self.draining:
            # The next owner answers what this proxy refuses because it stops.
            return forwarding.not_owner()
        self._refused.add(request, refused)
        if is_forwarded:
            return forwarding.refusal(refused)
        self._metrics.refusals.labels(refused.refusal.code).inc()
        headers = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
        if refused.refusal is Refusal.CLOSED:
            headers |= NO_RETRY
        return web.Response(status=refused.refusal.status, body=dialect.error(refused), headers=JSON | headers)


def _detected(candidates: Sequence[tuple[Dialect, Handle]], request: web.Request) -> tuple[Dialect, Handle]:
    """The dialect whose signs (headers) the request has, otherwise the first."""
    if len(candidates) == 1:
        return candidates[0]
    return next((c for c in candidates if any(sign in request.headers for sign in c[0].signs)), candidates[0])


def _is_gone(request: web.Request) -> bool:
    """Whether the harness has hung up."""
    return request.transport is None or request.transport.is_closing()


async def _wire_of(request: web.Request, serves: Serves, reservation: Reservation) -> Wire:
    # An agent that lists its environment would show its key to the model, and so to the log, the lake and the trajectory: keys are
    # removed from what the model reads, in every dialect.
    body = await body_of(request, reservation)
    body = _cleaned(body) if len(body) <= QUICK_BYTES else await asyncio.to_thread(_cleaned, body)
    named = {name: redacted(value) for name, value in request.match_info.items()}
    return Wire(body, named, request.query, request.headers, serves)


def _cleaned(body: bytes) -> bytes:
    """The body without keys and secrets. Raises RefusalError for one that isn't worth parsing."""
    cleaned = redacted_bytes(body)
    require_values(cleaned)
    return cleaned
