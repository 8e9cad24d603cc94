"""The control API: sessions for agents that people run themselves, and the text of tokens. Served on the control port, with its token.

POST /v1/sessions {task_id?, ttl_s?, num_samples?, mode?, run?, label?, limits?}: 201 {session_id, key, expires_at, env}.
POST /v1/sessions/<session_id>/close {reward?, force?}: 202 {session_id}.
POST /v1/detokenize {token_ids: [[int, …], …]}: 200 {texts: [str, …]}.

Errors are JSON, {error: {code, field?, message}}, with 400, 401, 404, 405, 408, 409, 413, 502 or 503. No log line holds a key.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

import msgspec
import structlog
from aiohttp import web
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

from proxy.control.opening import NoAnswerError, OpenRequest, SessionDeclinedError, SessionOpener
from proxy.engines.pool import Engines
from proxy.errors import EngineError
from topics.control import Grant
from topics.environment.keys import BACKSTOP_S, KeyClaims, Keyring, Limits, environment, issued_at
from topics.environment.redaction import redacted
from topics.types import field_errors, ids
from topics.types.session import task_id_of
from topics.types.task import RUN_LIMIT_S, SAMPLES_LIMIT, TRAINING_DEFAULTS, LimitsSpec, RunName, TaskId

BODY_BYTES = 8 * 1024 * 1024
"""Of any request on the control port: room for a million token ids."""
SESSION_BYTES = 64 * 1024
"""Of a request that opens or closes a session."""
BODY_S = 60.0
"""For a body to arrive, as on the model API."""
DETOKENIZING = 8
"""Concurrent calls to the engine for one detokenize request."""
TEXTS = 65_536
"""Token sequences in one detokenize request."""
TTL_S = 3600.0
"""Default lifetime of a session's key."""
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}\.(0|[1-9][0-9]{0,3})")
WORDS = {
    "submitted": "{task} was submitted as a task, whose samples workers run; open a session under another task id",
    "taken": "every sample of {task} has been opened; choose another task id, or say more samples when you open its first",
    "samples": "{task} was opened with another number of samples; leave num_samples out for all but its first session",
    "mode": "{task} was opened in the other mode; all samples of a task have one",
    "run": "{task} was opened in another run, or in none; leave run out for all but its first session",
    "cancelled": "{task} was cancelled; choose another task id",
    "ended": "{named} has ended already",
    "unknown": "there is no session {named}",
    "unopened": "{named} was never opened; `polar cancel {named}` ends it",
}
"""Messages for the caller, by the reason of a Revoke."""
CLOSING_WORDS = WORDS | {"submitted": "{named} is run by workers; `polar cancel {named}` ends it"}
FIELDS = {"samples": "num_samples", "mode": "mode", "run": "run"}
"""The field of an open at fault, by reason; `task_id` for all others."""

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class ControlError(Exception):
    """A request fails with this status and JSON error."""

    status: int
    code: str
    message: str
    _: KW_ONLY
    field: str | None = None

    def __str__(self) -> str:
        return self.message


def _is_label(text: str) -> str:
    if re.fullmatch(ids.LABEL, text) is None:
        raise ValueError("must be one line of 1 to 128 characters")
    return text


class Body(BaseModel):
    """A request's body; strict, since a misspelt field would silently be its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class OpenBody(Body):
    task_id: TaskId | None = None
    ttl_s: float = Field(default=TTL_S, ge=1, le=RUN_LIMIT_S)
    num_samples: int | None = Field(default=None, ge=1, le=SAMPLES_LIMIT)
    mode: Literal["train", "eval"] = "train"
    run: RunName | None = None
    label: Annotated[str, AfterValidator(_is_label)] | None = None
    limits: LimitsSpec = LimitsSpec()


class CloseBody(Body):
    reward: float | None = None
    force: bool = False
    """The reward counts even if the session has no answered call."""


class DetokenizeBody(Body):
    # Validation must end at the first error: to report millions of them took 16 s and 3 GB.
    model_config = ConfigDict(extra="ignore")

    token_ids: Annotated[
        list[Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], FailFast()]], FailFast(), Field(max_length=TEXTS)
    ]


B = TypeVar("B", bound=Body)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlApi:
    """The routes' handlers. `proxy_url` and `is_serving` are called at each request: the proxy starts after its control port."""

    def __init__(
        self,
        openings: SessionOpener,
        engines: Engines,
        keyring: Keyring,
        *,
        namespace: str,
        token: str | None,
        proxy_url: Callable[[], str],
        is_serving: Callable[[], bool],
    ) -> None:
        self._openings = openings
        self._engines = engines
        self._keyring = keyring
        self._namespace = namespace
        self._token = token
        self._proxy_url = proxy_url
        self._is_serving = is_serving

    def routes(self) -> list[web.RouteDef]:
        """The routes, for an application with the middleware `json_errors`."""
        return [
            web.post("/v1/sessions", self._authorized(self._open)),
            web.post("/v1/sessions/{session_id}/close", self._authorized(self._close)),
            web.post("/v1/detokenize", self._authorized(self._detokenize)),
        ]

    def _authorized(self, handle: Handler) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            if self._token is None:
                raise ControlError(
                    503, "no_token", "this proxy has no control token; start it with POLAR_CONTROL_TOKEN_FILE"
                )
            if not has_token(request, self._token):
                raise ControlError(401, "unauthenticated", "expected Authorization: Bearer and the control token")
            if not self._is_serving():
                raise ControlError(503, "not_ready", "the proxy is starting or stopping; try again")
            return await handle(request)

        return handler

    async def _open(self, request: web.Request) -> web.Response:
        body = _parsed(OpenBody, await _read(request, SESSION_BYTES) or b"{}")
        try:
            grant, granted_ms = await self._openings.open(
                OpenRequest(body.task_id, body.ttl_s, body.num_samples, body.mode, body.run, body.label)
            )
        except SessionDeclinedError as declined:
            field = FIELDS.get(declined.reason, "task_id")
            words = _words(WORDS, declined, task=body.task_id or "the task", named="the session")
            raise ControlError(409, declined.reason, words, field=field) from None
        except NoAnswerError as unanswered:
            raise ControlError(503, "unanswered", str(unanswered)) from None
        log.info("session opened", action="session_opened", session=grant.session_id, ttl_s=body.ttl_s)
        now = time.time()
        key = self._keyring.mint(_claims(grant, granted_ms, body, int(now), self._namespace))
        opened = {
            "session_id": grant.session_id,
            "key": key,
            "expires_at": datetime.fromtimestamp(int(now + body.ttl_s), UTC).isoformat().replace("+00:00", "Z"),
            "env": environment(self._proxy_url(), key),
        }
        return _json(201, opened)

    async def _close(self, request: web.Request) -> web.Response:
        session_id = request.match_info["session_id"]
        if not SESSION_ID.fullmatch(session_id):
            shown = repr(session_id[:200])
            raise ControlError(400, "bad_input", f"expected <task id>.<sample index> (got {shown})", field="session_id")
        body = _parsed(CloseBody, await _read(request, SESSION_BYTES) or b"{}")
        try:
            await self._openings.close(session_id, body.reward, is_forced=body.force)
        except SessionDeclinedError as declined:
            status = 404 if declined.reason == "unknown" else 409
            words = _words(CLOSING_WORDS, declined, task=task_id_of(session_id), named=session_id)
            raise ControlError(status, declined.reason, words, field="session_id") from None
        except NoAnswerError as unanswered:
            raise ControlError(503, "unanswered", str(unanswered)) from None
        log.info("session closed", action="session_closed", session=session_id)
        return _json(202, {"session_id": session_id})

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = _parsed(DetokenizeBody, await _read(request, BODY_BYTES))
        at_once = asyncio.Semaphore(DETOKENIZING)

        async def text(token_ids: list[int]) -> str:
            if not token_ids:
                return ""
            async with at_once:
                return await self._engines.default.detokenize(token_ids)

        tasks = [asyncio.ensure_future(text(token_ids)) for token_ids in body.token_ids]
        try:
            return _json(200, {"texts": await asyncio.gather(*tasks)})
        except EngineError as fault:
            if fault.code == "refused":
                raise ControlError(400, "bad_input", fault.message, field="token_ids") from None
            raise ControlError(502, "bad_engine", f"the engine returned no text ({fault.code}); try again") from None
        finally:
            for task in tasks:
                task.cancel()


def has_token(request: web.Request, token: str) -> bool:
    """Whether a request has the control token."""
    candidate = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(candidate.encode(errors="replace"), token.encode())


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every error as JSON."""
    try:
        return await handler(request)
    except ControlError as refused:
        answer = refused
    except web.HTTPException as error:
        answer = ControlError(
            error.status, error.reason.lower().replace(" ", "_"), f"{error.reason}: {request.path[:200]}"
        )
    except ConnectionError:
        raise
    except Exception:
        # Never log.exception: renderers show locals, and these hold keys.
        log.error("control request failed", action="control_failed", trace=redacted(traceback.format_exc()))
        answer = ControlError(503, "failed", "the request failed here; the log says why")
    error_body = {"code": answer.code, "field": answer.field, "message": redacted(answer.message)}
    return _json(answer.status, {"error": {name: value for name, value in error_body.items() if value is not None}})


def _claims(grant: Grant, granted_ms: int, body: OpenBody, now: int, namespace: str) -> KeyClaims:
    imposed = TRAINING_DEFAULTS.model_dump(exclude_none=True) if body.mode == "train" else {}
    return KeyClaims(
        session_id=grant.session_id,
        attempt=grant.attempt,
        claim_id=grant.claim_id,
        expires_at=now + int(body.ttl_s) + BACKSTOP_S,
        issued_at=issued_at(granted_ms),
        namespace=namespace,
        mode=body.mode,
        sampling=imposed,
        limits=Limits(**body.limits.model_dump(exclude_none=True)),
        log_partition=grant.log_partition or 0,
        log_offset=grant.log_offset or 0,
    )


def _words(words: dict[str, str], declined: SessionDeclinedError, *, task: str, named: str) -> str:
    return words.get(declined.reason, "the request failed ({reason})").format(
        task=task, named=named, reason=declined.reason
    )


async def _read(request: web.Request, limit: int) -> bytes:
    if "Content-Encoding" in request.headers:
        raise ControlError(400, "bad_input", "Content-Encoding: compressed bodies aren't read here")
    try:
        async with asyncio.timeout(BODY_S):
            return await request.clone(client_max_size=limit).read()
    except TimeoutError:
        raise ControlError(408, "slow", f"the request's body did not come whole within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise ControlError(400, "bad_input", f"the request's body can't be read: {error}") from None
    except web.HTTPRequestEntityTooLarge:
        raise ControlError(413, "too_large", f"the request's body is over {limit} bytes") from None


def _parsed(kind: type[B], body: bytes) -> B:
    """A validated body. Raises ControlError (400) for the first error."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = field_errors.first_error(error)
        field = ".".join(map(str, first["loc"])) or None
        shown = "" if field is None else f" (got {repr(first['input'])[:120]})"
        known = f"; there are: {', '.join(kind.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise ControlError(400, "bad_input", f"{field_errors.reason(first)}{known}{shown}", field=field) from None


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
