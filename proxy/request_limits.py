"""Limits of a request: the size of its head, the number of values in its body, and the longest time of a call.

`proxy/routes.py` limits the bytes of a body; each wait within a call is limited where it happens.
"""

from __future__ import annotations

from aiohttp import web

from proxy.errors import Refusal, RefusalError

HEAD_BYTES = 32 * 1024
"""Of a request's path and headers together: a common limit of servers."""
PARSED_BYTES = 64 * 1024
"""Of the request line, or of one header, for aiohttp's parser. It answers longer ones, and more than 128 headers, itself with 400."""
VALUES = 1_000_000
"""Values in a body, counted by the marks before them. Parsing so many blocks the event loop for 3 s, and a lease ends after 6 s. A text has
fewer marks than tokens, and no model's context holds a million tokens."""
MARKS = (b",", b"{", b"[")
CALL_S = 3_300.0
"""The longest call: 1,800 s held by pauses, 600 s for its turn at the engine, 600 s there, 120 s each for room and acknowledgement."""


def require_head(request: web.Request) -> None:
    """Raises RefusalError if the head is too large."""
    size = len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers)
    if size > HEAD_BYTES:
        raise RefusalError(Refusal.TOO_LARGE, f"the request's path and headers are {size} bytes; at most {HEAD_BYTES}")


def require_values(body: bytes) -> None:
    """Raises RefusalError if the body has too many values to parse."""
    if len(body) > VALUES and sum(map(body.count, MARKS)) > VALUES:
        raise RefusalError(Refusal.TOO_LARGE, f"the request's body has over {VALUES} values")
