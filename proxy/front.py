"""The port that harnesses speak to: routes from the dialects, and each request's way to a call.

detect (the path says the dialect) → authenticate → normalise → call engine → capture → answer. Whatever goes wrong is told in the dialect's
own shape, and nothing of ours ever comes out as a bare 500.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog
from aiohttp import web

from polar.keys import KeyClaims
from polar.types.completion import Sampling
from proxy.auth import Authenticator
from proxy.call import Call, Pipeline
from proxy.capture import Asked
from proxy.chat import ChatRequest
from proxy.dialects.base import Dialect
from proxy.errors import Refusal, Refused
from proxy.metrics import Metrics
from proxy.session import Claims
from proxy.streaming import JSON, respond

BODY_BYTES = 64 * 1024 * 1024
BODY_S = 60.0
"""From a request's headers to the end of its body."""
CALLS = 4096
"""Calls in flight; the next one is told to come again."""
RETRY_AFTER_S = 5
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger(__name__)


class Front:
    """Turns requests into calls."""

    def __init__(
        self,
        dialects: Sequence[Dialect],
        authenticator: Authenticator,
        claims: Claims,
        pipeline: Pipeline,
        metrics: Metrics,
    ) -> None:
        self._dialects = dialects
        self._authenticator = authenticator
        self._claims = claims
        self._pipeline = pipeline
        self._metrics = metrics
        self._calls: set[Call] = set()
        self.draining = False
        """Calls under way go on; new ones are told to come again."""

    @property
    def calls(self) -> frozenset[Call]:
        """In flight."""
        return frozenset(self._calls)

    def application(self) -> web.Application:
        """The routes of all dialects; what no dialect knows is told in the first one's shape."""
        app = web.Application(client_max_size=BODY_BYTES)
        for dialect in self._dialects:
            for path in dialect.calls:
                app.router.add_post(path, self._handler(dialect, self._call))
            for path in dialect.models:
                app.router.add_get(path, self._handler(dialect, self._models))
        app.router.add_route("*", "/{path:.*}", self._handler(self._dialects[0], self._unknown))
        return app

    def _handler(
        self, dialect: Dialect, handle: Callable[[web.Request, Dialect], Awaitable[web.StreamResponse]]
    ) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                return await handle(request, dialect)
            except Refused as refused:
                return self._refusal(dialect, refused)
            except ConnectionError:
                raise
            except Exception:
                # Never log.exception: renderers show locals, and these hold keys and prompts.
                log.error("request failed", action="request_failed", dialect=dialect.name, trace=traceback.format_exc())
                return self._refusal(dialect, Refused(Refusal.UNAVAILABLE, "the proxy failed; try again"))

        return handler

    async def _call(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        received_at = time.time()
        key = self._authenticator.claims_of(dialect.key_of(request.headers))
        if self.draining or len(self._calls) >= CALLS:
            raise Refused(Refusal.OVERLOADED, "the proxy is busy; try again", retry_after_s=RETRY_AFTER_S)
        body = await _body_of(request)
        asked_for = imposed(dialect.parse(body), key)
        claim = await self._claims.of(key)
        # From here to the call nothing is awaited, so that a key that closes finds its call.
        call_id = dialect.id_prefix + os.urandom(16).hex()
        asked = Asked(call_id, claim, dialect.name, self._pipeline.engine.name, asked_for, received_at)
        call = Call(self._pipeline, asked, len(body))
        self._calls.add(call)
        try:
            return await respond(request, dialect, self._pipeline, call)
        finally:
            self._calls.discard(call)

    async def _models(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        self._authenticator.claims_of(dialect.key_of(request.headers))
        return web.Response(body=dialect.model_list(self._pipeline.engine.models), headers=JSON)

    async def _unknown(self, request: web.Request, _: Dialect) -> web.StreamResponse:
        raise Refused(Refusal.NOT_FOUND, f"nothing is served at {request.method} {request.path[:200]}")

    def _refusal(self, dialect: Dialect, refused: Refused) -> web.Response:
        self._metrics.refusals.labels(refused.refusal.code).inc()
        wait = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
        return web.Response(status=refused.refusal.status, body=dialect.error(refused), headers=JSON | wait)


async def _body_of(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise Refused(Refusal.SLOW, f"the request's body did not come whole within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise Refused(Refusal.INVALID, f"the request's body can't be read: {error}") from None
    except web.HTTPRequestEntityTooLarge:
        raise Refused(Refusal.TOO_LARGE, f"the request's body is over {BODY_BYTES} bytes") from None


def imposed(request: ChatRequest, key: KeyClaims) -> ChatRequest:
    """The request with the key's sampling in place of the harness's, and the record's flags set."""
    asked = request.sampling
    values = {name: key.sampling.get(name, getattr(asked, name)) for name in SAMPLING}
    return msgspec.structs.replace(
        request,
        sampling=Sampling(**values, truncated=_truncates(values), grammar=request.is_grammar_bound),
    )


SAMPLING = tuple(name for name in Sampling.__struct_fields__ if name not in ("truncated", "grammar"))


def _truncates(values: dict[str, float | int | None]) -> bool:
    top_p, top_k, min_p = values["top_p"], values["top_k"], values["min_p"]
    return (top_p is not None and top_p < 1) or (top_k is not None and top_k > 0) or (min_p is not None and min_p > 0)
