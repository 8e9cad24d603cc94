"""Requests that begin as a harness's and go wrong: in their body, its framing, their headers, their key, their path."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from urllib.parse import quote

from hypothesis import strategies as st

from tests.proxy.fuzz.bodies import CALLS
from tests.proxy.fuzz.mutations import NUMBERS, Draw, copied, mutated, one_of, text
from tests.proxy.fuzz.served import KEY, KEYS, Shot

Headers = list[tuple[str, str]]
FRAMINGS = (*["length"] * 12, "chunked", "gzip", "deflate", "cut gzip", "lie", "expect", "unknown")
ENCODINGS = ("gzip", "deflate", "br", "zstd")
CHUNK = 700
HEADERS = (
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "x"),
    ("x-goog-api-client", "g"),
    ("Content-Type", "text/plain"),
    ("Content-Type", "application/json; charset=utf-16"),
    ("Content-Type", "application/json; charset=nonsense"),
    ("Content-Type", "multipart/form-data; boundary=x"),
    ("Content-Type", ";;;"),
    ("Accept", "image/png"),
    ("Accept-Encoding", "gzip, br"),
    ("Cookie", "a=b; =; ;;"),
    ("Range", "bytes=0-1"),
    ("If-None-Match", "*"),
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("X-HTTP-Method-Override", "DELETE"),
    ("X-Forwarded-For", "'"),
    ("X-Polar-Forwarded", "proxy-x"),
    ("x-stainless-retry-count", "1"),
    ("x-stainless-retry-count", "-"),
    ("X-Claude-Code-Session-Id", "\xff\xfe"),
    ("session_id", "\xe9"),
    ("x-codex-turn-metadata", '{"request_kind": "\\ud800"}'),
    ("x-odd", "y" * 6000),
    ("x-odd", "y" * 40_000),
    ("x-odd", ""),
    ("Authorization", ""),
    ("Authorization", "Basic eDp5"),
    ("Authorization", "Bearer"),
    ("Authorization", "Bearer \xff"),
    ("x-api-key", "\x80"),
)
PATHS: tuple[Callable[[str], str], ...] = (
    lambda path: path + "/",
    lambda path: "/" + path,
    lambda path: path.upper(),
    lambda path: path.replace("v1", "v2", 1),
    lambda path: path + "/../..",
    lambda path: path + "%00",
    lambda path: path + "%2f%2e%2e",
    lambda path: path + "%ff",
    lambda path: path + "?",
    lambda path: path + "?%zz=%",
    lambda path: path + "?alt=sse&alt=json&$alt=proto&key=",
    lambda path: path + "?" + "a=b&" * 300,
    lambda path: path.replace("gemini", quote("\U0001f600/ :\u202e"), 1),
    lambda path: path.replace("gemini", "m" * 3000, 1),
    lambda path: path + ";x=y",
    lambda path: path + "#x",
    lambda path: "/v1/models/" + quote("\0\n"),
    lambda path: "/v1/models",
    lambda path: "/s/x/s/y" + path,
    lambda path: "/",
    lambda path: "*",
    lambda path: "http://elsewhere" + path,
)
METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
PLACES = (*("Bearer", "bearer", "x-api-key", "x-goog-api-key", "X-Polar-Key", "query", "path") * 3, "wrong")
WRONG_PLACES = (f"//s/{KEY}", f"/s/{KEY}/nowhere", f"/x/s/{KEY}", f"/s/{KEY}/s/{KEY}", f"/%73/{KEY}", f"/s/{KEY}%2F")


def _framed(draw: Draw, body: bytes) -> tuple[bytes, Headers]:
    """A body on the wire, and the headers that say how it stands there."""
    how = one_of(draw, FRAMINGS)
    length = ("Content-Length", str(len(body)))
    if how == "chunked":
        pieces = [body[at : at + CHUNK] for at in range(0, min(len(body), 20 * CHUNK), CHUNK)] + [body[20 * CHUNK :]]
        told = b"".join([b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece])
        return told + b"0\r\n\r\n", [("Transfer-Encoding", "chunked")]
    if how in ("gzip", "deflate", "cut gzip"):
        packed = zlib.compress(body) if how == "deflate" else gzip.compress(body, 1, mtime=0)
        packed = packed[:-9] if how == "cut gzip" else packed
        return packed, [("Content-Encoding", how.split()[-1]), ("Content-Length", str(len(packed)))]
    if how == "lie":
        return body, [("Content-Encoding", one_of(draw, ENCODINGS)), length]
    if how == "expect":
        return body, [("Expect", one_of(draw, ("100-continue", "100-continue", "200-ok"))), length]
    if how == "unknown":
        return body, [("Content-Encoding", "x-odd"), length]
    return body, [length]


def _keyed(place: str, path: str) -> tuple[str, Headers]:
    """The path and the headers that bear a key, in any of its places."""
    match place:
        case "query":
            return f"{path}{'&' if '?' in path else '?'}key={KEY}", []
        case "path":
            return (f"/s/{KEY}{path}" if path.startswith("/") else path), []
        case "Bearer" | "bearer":
            return path, [("Authorization", f"{place} {KEY}")]
        case "wrong":
            return path, []
    return path, [(place, KEY)]


@st.composite
def shots(draw: Draw) -> Shot:
    """A request that was a harness's."""
    asked = one_of(draw, CALLS)
    body = copied(asked.body)
    for _ in range(one_of(draw, (0, 1, 1, 1, 2, 3))):
        body = mutated(draw, body)
    raw, framing = _framed(draw, text(draw, body))
    headers = [one_of(draw, HEADERS) for _ in range(one_of(draw, (0, 0, 0, 1, 2)))]
    path, method = asked.target, "POST"
    if draw(NUMBERS) % 16 == 15:
        path = one_of(draw, PATHS)(path)
    if draw(NUMBERS) % 32 == 31:
        method = one_of(draw, METHODS)
    place, kind = one_of(draw, PLACES), one_of(draw, (*["good"] * 60, *KEYS))
    if place == "wrong":
        path = one_of(draw, WRONG_PLACES) + path
    is_lost = (path, method) != (asked.target, "POST") or (place, kind) == ("path", "none")
    target, key = _keyed(place, path)
    return Shot(method, target, (*headers, *key, *framing), raw, None if is_lost else asked.dialect, kind)
