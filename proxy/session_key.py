"""Where a request holds its session's key: a URL prefix, a header of our own, or the place of any provider's client.

Harnesses mix them (a client of one provider through another's gateway), so every place is looked at on every path, and the first key
that looks like ours counts. The rest of the proxy sees a path without the prefix; no log line, metric or error holds a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from aiohttp import web

from topics.environment.keys import PREFIX

KEY_HEADER = "X-Polar-Key"
IN_PATH = "polar_key"
"""The name under which the prefix's key is matched."""
PATH_PREFIX = f"/s/{{{IN_PATH}}}"
"""Before any path: `/s/<key>/v1/messages`."""
MISPLACED = re.compile(re.escape(PREFIX) + "[^/]*")
"""A key elsewhere in a path, as where a base URL was put together wrongly."""


def key_of(request: web.Request) -> str | None:
    """The key of a request; one that isn't ours where there is no other, None where there is none."""
    found = [key for key in _candidates(request) if key]
    return next((key for key in found if key.startswith(PREFIX)), found[0] if found else None)


def path_of(request: web.Request) -> str:
    """The request's path without a key in it, wherever that stands."""
    key = request.match_info.get(IN_PATH)
    path = request.path if key is None else request.path.removeprefix(f"/s/{key}")
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
