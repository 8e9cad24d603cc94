"""Finds a session's key in a request: in a URL prefix, in our own header, or where any provider's client sends it.

Harnesses mix these (a client of one provider through another's gateway), so every place is searched on every path, and the first key with
our prefix counts. The rest of the proxy sees a path without the key; no log line, metric or error contains a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from aiohttp import web

from topics.environment.redaction import PREFIX

KEY_HEADER = "X-Polar-Key"
IN_PATH = "polar_key"
"""Name of the key in the route's pattern."""
PATH_PREFIX = f"/s/{{{IN_PATH}}}"
"""Allowed in front of any path: `/s/<key>/v1/messages`."""
KEY_PREFIX = f"/s/{{{IN_PATH}:{re.escape(PREFIX)}[^/]*}}"
"""`PATH_PREFIX` in front of a path that no route serves. There, only a text with the prefix of keys is a key."""
MISPLACED = re.compile(re.escape(PREFIX) + "[^/]*")
"""A key elsewhere in a path: a base URL was put together wrongly. It admits to nothing, but tells whose request was refused."""


def key_of(request: web.Request) -> str | None:
    """The key of a request; if none has our prefix the first of any kind, None if there is none."""
    found = [key for key in _candidates(request) if key]
    return next((key for key in found if key.startswith(PREFIX)), found[0] if found else None)


def refused_key_of(request: web.Request) -> str | None:
    """The key of a request that is refused: as `key_of`, or else one that stands in a wrong place of the path."""
    key = key_of(request)
    if key is not None and key.startswith(PREFIX):
        return key
    misplaced = MISPLACED.search(request.path)
    return key if misplaced is None else misplaced[0]


def path_of(request: web.Request) -> str:
    """The request's path without any key."""
    key = request.match_info.get(IN_PATH)
    path = request.path if key is None else request.path.removeprefix(f"/s/{key}") or "/"
    return MISPLACED.sub("…", path)


def _candidates(request: web.Request) -> Iterator[str]:
    yield request.match_info.get(IN_PATH, "")
    headers = request.headers
    yield headers.get(KEY_HEADER, "")
    yield headers.get("x-api-key", "")
    yield headers.get("x-goog-api-key", "")
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip()
    if "key" in request.rel_url.raw_query_string:
        yield request.query.get("key", "")
