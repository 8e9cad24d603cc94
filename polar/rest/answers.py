"""Answers of `polar rest`: JSON, errors as NVIDIA's server (FastAPI) writes them, and the token."""

from __future__ import annotations

import asyncio
import base64
import hmac
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from topics.environment.redaction import redacted
from topics.types.errors import InputError, NotReadyError

OPEN = ("/health", "/callbacks/group")
"""Paths without a token: liveness, and messages of our own webhooks, which are signed."""
TOKEN_HEADER = "X-Polar-Control-Token"  # noqa: S105 - its name
"""NVIDIA's header, which its clients send if POLAR_CONTROL_PLANE_TOKEN is set."""
BODY_S = 60.0
"""For a request's body to arrive."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = structlog.get_logger(__name__)


@dataclass(eq=False)
class BodyError(Exception):
    """A request fails with this status and `{"detail": …}`."""

    status: int
    detail: Any

    def __str__(self) -> str:
        return str(self.detail)


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises BodyError if it doesn't arrive in time."""
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        raise BodyError(408, f"the request's body did not come whole within {BODY_S:g} s") from None


def decoded(body: bytes) -> Any:
    """A body's JSON. Raises InputError."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("task", body[:80], f"isn't JSON in UTF-8: {error}") from None
    except RecursionError:
        raise InputError("task", body[:80], "is nested too deeply") from None


def has_token(headers: Any, token: str) -> bool:
    """Whether a request has the token: as a bearer token, in NVIDIA's header, or as the password of a URL (Basic)."""
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    candidates = [headers.get(TOKEN_HEADER, "")]
    if scheme.lower() == "bearer":
        candidates.append(credentials)
    elif scheme.lower() == "basic":
        try:
            candidates.append(base64.b64decode(credentials, validate=True).decode().partition(":")[2])
        except ValueError:  # no Base64, no ASCII, or no UTF-8 in it
            pass
    return any(hmac.compare_digest(one.encode(errors="replace"), token.encode()) for one in candidates)


def answering(token: str) -> Middleware:
    """A middleware that demands the token and answers every error as JSON."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path not in OPEN and not has_token(request.headers, token):
                words = f"expected the control token: Authorization: Bearer, {TOKEN_HEADER}, or the URL's password"
                raise BodyError(401, words)
            return await handler(request)
        except BodyError as error:
            return _error(error.status, error.detail)
        except InputError as error:
            place = "body" if request.body_exists else "query"
            located = {"type": "value_error", "loc": [place, *error.field.split(".")], "msg": str(error)}
            return _error(422, [located])
        except NotReadyError as error:
            return _error(503, str(error))
        except web.RequestPayloadError as error:
            return _error(400, f"the request's body can't be read: {error}")
        except web.HTTPRequestEntityTooLarge:
            # aiohttp's own text names a limit in a form that differs by version.
            return _error(413, f"the request's body has more than {request.client_max_size} bytes; send less")
        except web.HTTPException as error:
            return _error(error.status, error.reason)
        except Exception as error:
            if isinstance(error, ConnectionError) and request.transport is None:
                return _error(400, "the client has left")
            log.error("request failed", action="rest.failed", trace=redacted(traceback.format_exc()))
            return _error(500, "the server failed; its log says why")

    return answer


def _error(status: int, detail: Any) -> web.Response:
    headers = {"WWW-Authenticate": 'Basic realm="polar"'} if status == 401 else None
    body = redacted(msgspec.json.encode({"detail": detail}).decode())
    return web.Response(status=status, text=body, content_type="application/json", headers=headers)
