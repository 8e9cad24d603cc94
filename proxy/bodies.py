"""Reads the bodies of requests whose key is known: within the byte budget, and decompressed in a thread, never further than the limit.

aiohttp would decompress whatever arrives, on the event loop, before any key is looked at; the servers leave bodies as they came.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from proxy.byte_budget import SMALL, Reservation
from proxy.errors import Refusal, RefusalError

BODY_BYTES = 64 * 1024 * 1024
"""Limit for one body, both as received and decompressed."""
BODY_S = 60.0
"""From the first read to the end of the body: a slow sender would hold a place among the requests."""
SLICE = 64 * 1024
"""Bytes that are decompressed at a time."""
ENCODING = "Content-Encoding"

_threads = ThreadPoolExecutor(2, "decompress")


async def body_of(request: web.Request, reservation: Reservation) -> bytes:
    """The whole body, decompressed. Raises RefusalError."""
    encoding = request.headers.get(ENCODING, "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise RefusalError(
            Refusal.INVALID, f"{ENCODING}: expected gzip, deflate or none, got {encoding[:100]!r}", field=ENCODING
        )
    if encoding in ("identity", ""):
        body = await _read(request, reservation, least=0)
        reservation.shrink(len(body))
        return body
    # Decompressed, a short body may be a thousand times as long.
    body = await _read(request, reservation, least=SMALL)
    loop = asyncio.get_running_loop()
    inflated = await loop.run_in_executor(_threads, _inflated, body, encoding, SMALL)
    if inflated is None:
        await reservation.grow(BODY_BYTES)
        inflated = await loop.run_in_executor(_threads, _inflated, body, encoding, BODY_BYTES)
        if inflated is None:
            raise _too_large()
    reservation.shrink(len(inflated))
    return inflated


async def _read(request: web.Request, reservation: Reservation, *, least: int) -> bytes:
    """The body as it came; at least `least` bytes are reserved for it. Raises RefusalError."""
    length = request.content_length
    if length is not None and length > BODY_BYTES:
        raise _too_large()
    await reservation.grow(SMALL if length is None else max(length, least))
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while chunk := await request.content.readany():
                body += chunk
                if length is None and len(body) > SMALL:
                    break
        if len(body) > SMALL and length is None:
            await reservation.grow(BODY_BYTES)
            async with asyncio.timeout(BODY_S):
                while chunk := await request.content.readany():
                    body += chunk
                    if len(body) > BODY_BYTES:
                        raise _too_large()
    except TimeoutError:
        raise RefusalError(Refusal.SLOW, f"the request's body did not come whole within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise RefusalError(Refusal.INVALID, f"the request's body can't be read: {error}") from None
    return bytes(body)


def _inflated(body: bytes, encoding: str, limit: int) -> bytes | None:
    """A body decompressed; None if it is longer than `limit`. Raises RefusalError."""
    if not body:
        return body
    # Some clients send deflate without zlib's header, whose first byte ends in 8.
    window = 31 if encoding != "deflate" else 15 if body[0] & 0xF == 8 else -15
    inflater, inflated = zlib.decompressobj(window), bytearray()
    try:
        for at in range(0, len(body), SLICE):
            pending = body[at : at + SLICE]
            while pending and not inflater.eof:
                inflated += inflater.decompress(pending, min(SLICE, limit + 1 - len(inflated)))
                if len(inflated) > limit:
                    return None
                pending = inflater.unconsumed_tail
    except zlib.error:
        raise _broken(encoding) from None
    if not inflater.eof:
        raise _broken(encoding)
    return bytes(inflated)


def _broken(encoding: str) -> RefusalError:
    return RefusalError(Refusal.INVALID, f"the request's body can't be read: it is not whole {encoding}")


def _too_large() -> RefusalError:
    return RefusalError(Refusal.TOO_LARGE, f"the request's body is over {BODY_BYTES} bytes")
