"""From one proxy to another: a request as it came, and its whole answer or the refusal that its harness is to be told.

What is forwarded carries a header and is never forwarded again: who isn't the session's owner says so (421). The owner opens no stream
early; keep-alives towards the harness are the forwarder's. A harness that hangs up breaks the forwarder's connection off, and so ends the
call at the owner. Which proxy to ask, and when again, is `proxy/peers/routing.py`'s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import Refusal, RefusalError
from proxy.peers.ownership import Ownership, Peer
from proxy.request_limits import CALL_S
from topics.waiting.first_done import first_done

FORWARDED = "X-Polar-Forwarded"
"""On a request: the worker id of the proxy that forwards it, and the record of `polar.workers` by which it chose."""
REFUSED = "X-Polar-Refused"
"""On an answer: its body is a `RefusalBody`; on a 421: its sender isn't the session's owner."""
NOT_OWNER = 421
OFFSET = re.compile(r"[0-9]{1,18}")
CONNECT_S = 2.0
KEEPALIVE_S = 30.0
"""Less than a proxy keeps an idle connection for."""
NOT_CARRIED = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        FORWARDED.lower(),
    }
)
"""Of one connection alone, or of a body as it was encoded on it."""
Headers = Mapping[str, str]


class PeerError(Exception):
    """A proxy gave no answer; `reason` is `refused` (it isn't the owner), `unreachable`, `cut`, or `lost` (its lease ended)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RefusalBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `RefusalError` between proxies."""

    refusal: str
    message: str
    field: str | None = None
    retry_after_s: int | None = None
    context: tuple[int, int] | None = None


_told = msgspec.json.Decoder(RefusalBody)
_refusals = {refusal.code: refusal for refusal in Refusal}


def is_forwarded(request: web.Request) -> bool:
    """Whether another proxy sends it."""
    return FORWARDED in request.headers


def as_of(request: web.Request) -> int:
    """The offset by which its sender chose this proxy; -1 where there is none."""
    offset = request.headers[FORWARDED].rpartition(" ")[2]
    return int(offset) if OFFSET.fullmatch(offset) else -1


def refusal(refused: RefusalError) -> web.Response:
    """How a forwarder is told what it tells its harness."""
    told = RefusalBody(refused.refusal.code, refused.message, refused.field, refused.retry_after_s, refused.context)
    return web.Response(status=refused.refusal.status, body=msgspec.json.encode(told), headers={REFUSED: "told"})


def not_owner() -> web.Response:
    """How a forwarder is told to look again."""
    return web.Response(status=NOT_OWNER, headers={REFUSED: "not_owner"})


class Forwarder:
    """This proxy's connections to the others."""

    def __init__(self, worker_id: str, ownership: Ownership) -> None:
        self._worker_id = worker_id
        self._ownership = ownership
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the pool."""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=CALL_S, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )

    async def stop(self) -> None:
        """Closes the pool."""
        if self._http is not None:
            await self._http.close()

    async def send(self, peer: Peer, request: web.Request, body: bytes) -> bytes:
        """The owner's answer, as its harness is to have it. Raises PeerError; RefusalError where that is the answer."""
        asking = asyncio.ensure_future(self._send(peer, request, body))
        try:
            while not asking.done():
                if self._ownership.is_lost(peer):
                    raise PeerError("lost")
                await first_done(asking, self._ownership.next_change())
            return asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _send(self, peer: Peer, request: web.Request, body: bytes) -> bytes:
        assert self._http is not None, "started"
        # As it came, key and all: the owner authenticates it anew.
        url = URL(peer.address + request.rel_url.raw_path_qs, encoded=True)
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in NOT_CARRIED
        )
        headers[FORWARDED] = f"{self._worker_id} {self._ownership.as_of}"
        try:
            async with self._http.request(
                request.method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                told = await response.read()
        except aiohttp.ClientConnectorError:
            raise PeerError("unreachable") from None
        except (aiohttp.ClientError, TimeoutError):
            raise PeerError("cut") from None
        if response.status == 200:
            return told
        if response.status == NOT_OWNER:
            raise PeerError("refused")
        raise _refused(told)


def _refused(body: bytes) -> RefusalError:
    try:
        told = _told.decode(body)
        kind = _refusals[told.refusal]
    except (msgspec.DecodeError, KeyError):
        return RefusalError(Refusal.UNAVAILABLE, "another proxy failed; try again", retry_after_s=1)
    return RefusalError(kind, told.message, field=told.field, retry_after_s=told.retry_after_s, context=told.context)
