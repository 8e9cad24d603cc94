"""How large a request may be, whoever sends it: its head, and the values of its body; and how long a call takes at most.

The bytes of a body are `front`'s to bound, each of a call's waits its owner's.
"""

from __future__ import annotations

from aiohttp import web

from proxy.errors import Refusal, RefusalError

HEAD_BYTES = 32 * 1024
"""Of a request's path and headers together: what servers commonly take."""
PARSED_BYTES = 64 * 1024
"""Of its first line, or of one header, that aiohttp takes in; what is longer, or of more than 128 headers, it answers itself, with 400."""
VALUES = 1_000_000
"""Of a body, counted by the marks before them: to read so many takes 3 s, in which nothing else happens, and a lease ends after 6 s. Text
has fewer marks than tokens, and no model's context holds so many."""
MARKS = (b",", b"{", b"[")
CALL_S = 3_300.0
"""The longest call: held by pauses for 1,800 s, 600 s for its turn then, the engine's 600 s, 120 s each for room and acknowledgement."""


def require_head(request: web.Request) -> None:
    """Raises RefusalError for a head that is too large."""
    size = len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers)
    if size > HEAD_BYTES:
        raise RefusalError(Refusal.TOO_LARGE, f"the request's path and headers are {size} bytes; at most {HEAD_BYTES}")


def require_values(body: bytes) -> None:
    """Raises RefusalError for a body that takes too long to read."""
    if len(body) > VALUES and sum(map(body.count, MARKS)) > VALUES:
        raise RefusalError(Refusal.TOO_LARGE, f"the request's body has over {VALUES} values")
