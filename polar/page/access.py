"""Who may ask for what: the token, the host's name, and the headers that keep a browser from mixing this page with others.

Every request of the API needs the control token, on every address: whoever connects on a loopback address may be another user of the
machine, a task that may reach this port, or a reverse proxy. The page itself, which is the same for everybody, needs none. It gets the
token from the fragment of its address, which a browser sends to nobody. On a loopback address the `Host` must be a loopback name
(DNS rebinding), and requests from other origins are refused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Middleware

from polar.fleet.errors import FleetError
from proxy.control.api import ControlError, has_token
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

API = "/api/"
OPEN = frozenset({"/api/openapi.json"})
"""Paths of the API that need no token."""
HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(:[0-9]+)?")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def guard(token: str, *, only_loopback_names: bool) -> Middleware:
    """A middleware that refuses requests, and turns our errors into ControlErrors. `only_loopback_names`: those that `Host` may be."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if only_loopback_names:
            _require_this_host(request)
        if request.path.startswith(API):
            _require_this_origin(request)
            if request.path not in OPEN and not has_token(request, token):
                raise ControlError(401, "unauthenticated", "expected Authorization: Bearer and the control token")
            if request.method == "POST" and request.content_type != "application/json":
                raise ControlError(400, "bad_input", "expected Content-Type: application/json", field="Content-Type")
        try:
            return await handler(request)
        except InputError as error:
            raise ControlError(400, "bad_input", str(error), field=error.field) from None
        except NotReadyError as error:
            raise ControlError(503, "not_ready", str(error)) from None
        except FleetError as error:
            raise ControlError(409, "fleet", str(error)) from None

    return guarded


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers of every answer, before it is sent."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store" if request.path.startswith(API) else "no-cache")


def token_of(settings: Settings) -> str:
    """The control token. Raises NotReadyError without one, or if its file can't be read."""
    from polar.sessions import control_token

    if settings.control_token_file is None:
        raise NotReadyError(
            "the page needs the control token: name its file with POLAR_CONTROL_TOKEN_FILE, or the data folder of `polar up` with --data"
        )
    return control_token(settings.control_token_file)


def with_token(address: str, settings: Settings) -> str:
    """The page's address with the token in its fragment, for the person who opens it. Raises as `token_of`."""
    return f"{address}/#token={quote(token_of(settings), safe='')}"


def _require_this_host(request: web.Request) -> None:
    matched = HOST.fullmatch(request.headers.get("Host", ""))
    if matched is None or not is_loopback(matched[1]):
        raise ControlError(403, "wrong_host", "this page answers to localhost, 127.0.0.1 and [::1] alone", field="Host")


def _require_this_origin(request: web.Request) -> None:
    """Refuse what a page of another origin sends. Clients that aren't browsers send none of these headers."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise ControlError(403, "cross_site", "pages of other origins may not ask", field="Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("Host"):
        raise ControlError(403, "cross_site", "pages of other origins may not ask", field="Origin")
