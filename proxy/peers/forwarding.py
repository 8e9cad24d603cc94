"""Forwards a request, unchanged, to another proxy, and returns its whole answer or its error.

A forwarded request has a header, with a MAC by the fleet's secrets, and is never forwarded again: a proxy that doesn't own the session
answers 421. The owner opens no stream early; the forwarder sends keep-alives to the harness. If the harness hangs up, the forwarder closes
its connection, which ends the call at the owner. `proxy/peers/routing.py` decides which proxy to ask, and when to retry.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from wsgiref.util import is_hop_by_hop

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import Refusal, RefusalError
from proxy.peers.ownership import Ownership, Peer
from proxy.request_limits import CALL_S
from proxy.session_key import key_of
from topics.environment.keys import Keyring
from topics.waiting.first_done import first_done

FORWARDED = "X-Polar-Forwarded"
"""On a request: the forwarding proxy's worker id, a MAC of the other two and the session's key, and the offset in `polar.workers` of the
record that made the proxy's live set. Without its MAC the header means nothing."""
REFUSED = "X-Polar-Refused"
"""On an answer whose body is a `RefusalBody`, and on a 421."""
NOT_OWNER = 421
PROVEN = re.compile(r"([^ ]+) ([0-9a-f]{64}) (-1|[0-9]{1,18})")
"""The form of FORWARDED."""
CONNECT_S = 2.0
"""For a connection within a cluster: a proxy that takes longer is asked again."""
KEEPALIVE_S = 30.0
"""Less than the 75 s for which a proxy keeps an idle connection."""
NOT_CARRIED = {"content-encoding", "content-length", "expect", "host", "proxy-connection", "trailer", FORWARDED.lower()}
"""Headers that belong to one connection, or to a body's encoding on it, beside those of `is_hop_by_hop`."""


class PeerError(Exception):
    """Another proxy gave no answer; `reason` is `refused` (it isn't the owner), `unreachable`, `cut`, or `lost` (its lease ended)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RefusalBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `RefusalError` as proxies send it to one another."""

    refusal: str
    message: str
    field: str | None = None
    retry_after_s: int | None = None
    context: tuple[int, int] | None = None
    is_recorded: bool = False
    """The sender records it if it is worth a record. Older proxies record no refused request, and leave this out."""


_refusal_bodies = msgspec.json.Decoder(RefusalBody)
_refusals = {refusal.code: refusal for refusal in Refusal}


def refusal(refused: RefusalError) -> web.Response:
    """The answer to a forwarder whose harness gets this error."""
    body = RefusalBody(
        refused.refusal.code,
        refused.message,
        refused.field,
        refused.retry_after_s,
        refused.context,
        is_recorded=True,
    )
    return web.Response(status=refused.refusal.status, body=msgspec.json.encode(body), headers={REFUSED: "told"})


def not_owner() -> web.Response:
    """The answer to a forwarder that must look for the owner again."""
    return web.Response(status=NOT_OWNER, headers={REFUSED: "not_owner"})


class Forwarder:
    """This proxy's connections to the others."""

    def __init__(self, worker_id: str, ownership: Ownership, keyring: Keyring) -> None:
        self._worker_id = worker_id
        self._ownership = ownership
        self._keyring = keyring
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

    def sender_as_of(self, request: web.Request) -> int | None:
        """Offset of the sender's live set, -1 before it had one; None unless another proxy of the fleet sent this request."""
        found = PROVEN.fullmatch(request.headers.get(FORWARDED, ""))
        if found is None:
            return None
        worker_id, mac, offset = found.groups()
        signed = _signed(worker_id, offset, request)
        # The sender may sign with a secret that is newer than our last look.
        is_proven = self._is_mac(mac, signed) or (self._keyring.refresh(at_once=True) and self._is_mac(mac, signed))
        return int(offset) if is_proven else None

    def header(self, request: web.Request) -> str:
        """The value of FORWARDED for a request that this proxy forwards."""
        offset = str(self._ownership.as_of)
        mac = hmac.new(self._keyring.secrets()[-1], _signed(self._worker_id, offset, request), "sha256").hexdigest()
        return f"{self._worker_id} {mac} {offset}"

    def _is_mac(self, mac: str, signed: bytes) -> bool:
        return any(
            hmac.compare_digest(hmac.new(secret, signed, "sha256").hexdigest(), mac)
            for secret in self._keyring.secrets()
        )

    async def send(self, peer: Peer, request: web.Request, body: bytes) -> bytes:
        """The owner's answer, rendered for the harness. Raises PeerError, or the owner's RefusalError."""
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
        # Unchanged, with its key: the owner authenticates it again.
        url = URL(peer.address + request.rel_url.raw_path_qs, encoded=True)
        headers = CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in NOT_CARRIED and not is_hop_by_hop(name)
        )
        headers[FORWARDED] = self.header(request)
        try:
            async with self._http.request(
                request.method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                answer = await response.read()
        except aiohttp.ClientConnectorError:
            raise PeerError("unreachable") from None
        except (aiohttp.ClientError, TimeoutError):
            raise PeerError("cut") from None
        if response.status == 200:
            return answer
        if response.status == NOT_OWNER:
            raise PeerError("refused")
        raise _refusal_in(answer)


def _signed(worker_id: str, offset: str, request: web.Request) -> bytes:
    """The bytes that a MAC covers. No other use of the secrets signs a text with this beginning (`topics/environment/claim_keys.py`)."""
    return f"forwarded|{worker_id}|{offset}|{key_of(request)}".encode(errors="replace")


def _refusal_in(body: bytes) -> RefusalError:
    try:
        refused = _refusal_bodies.decode(body)
        kind = _refusals[refused.refusal]
    except (msgspec.DecodeError, KeyError):
        return RefusalError(Refusal.UNAVAILABLE, "another proxy failed; try again", retry_after_s=1)
    return RefusalError(
        kind,
        refused.message,
        field=refused.field,
        retry_after_s=refused.retry_after_s,
        context=refused.context,
        is_recorded=refused.is_recorded,
    )
