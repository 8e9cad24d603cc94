"""The claims that this proxy serves, and the keys that are closed; claims that it may not know in full are read back from the log.

Invariant: a claim is served from memory only if this proxy has owned its session ever since the key was minted, and has seen every
`CloseKey` that could name it; every other claim is read back from the log first (protocol 18, 20). Bounded: the least recently used claims
are forgotten, and of closed keys the newest are kept; a key older than the newest forgotten one is read back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from proxy.chat import ChatRequest
from proxy.session.claim_state import ClaimState, ReadBack
from proxy.session.endings import Ending
from topics.contract.topic import MIB
from topics.environment.keys import KeyClaims

CLAIMS = 4096
"""Claims kept; a claim with calls in flight is never forgotten."""
BYTES = 1024 * MIB
"""Limit for the estimated memory of all claims. A claim of 5,000 short calls takes 12 MB."""
CLOSED = 100_000
"""Closed claims remembered: some 10 MB."""


class OwnerChangedError(Exception):
    """The session has another owner now."""


class ClosedKeys:
    """The claims whose keys are closed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._closed_at: OrderedDict[str, float] = OrderedDict()
        self.forgotten_until = 0.0
        """When the newest forgotten key was closed: Unix seconds."""

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._closed_at

    def add(self, claim_id: str) -> None:
        """Adds a claim; beyond the limit the oldest is forgotten."""
        self._closed_at[claim_id] = self._now()
        self._closed_at.move_to_end(claim_id)
        if len(self._closed_at) > CLOSED:
            _, self.forgotten_until = self._closed_at.popitem(last=False)


class ClaimCache:
    """All claims that this proxy serves."""

    def __init__(self, read_back: ReadBack, owned_since: Callable[[str], float], now: Callable[[], float]) -> None:
        """`owned_since` returns since when this proxy has certainly been a session's only owner: Unix seconds, infinity if it isn't. `now`
        is the time, by the clock that is ahead of others: a key counts as new only if it certainly is.
        """
        self._read_back = read_back
        self._owned_since = owned_since
        self._claims: OrderedDict[str, ClaimState] = OrderedDict()
        self._sizes: dict[str, int] = {}
        """Bytes of each claim, by id, when it was last used."""
        self.size = 0
        """Sum of `_sizes`."""
        self._closed = ClosedKeys(now)
        self._open: OrderedDict[str, None] = OrderedDict()
        """Claims older than our knowledge that the log showed to be open; what closes them later is seen."""
        self._take_overs: dict[str, asyncio.Task[None]] = {}
        """Under way, by claim id."""
        self._complete_since = float("inf")
        """Unix seconds: no claim that was minted later is missing here, and no `CloseKey` of it was missed."""

    def __len__(self) -> int:
        return len(self._claims)

    def follows_since(self, unix_s: float) -> None:
        """From this moment on, every `CloseKey` is seen."""
        self._complete_since = unix_s

    def knows_closed(self, claim_id: str) -> bool:
        """Whether a claim's key is certainly closed. False says nothing: the close may be older than what this proxy remembers."""
        return claim_id in self._closed

    def cached(self, key: KeyClaims) -> ClaimState | None:
        """The claim of a key; None if it must be read back first. Raises RefusalError for a closed key."""
        claim_id = key.claim_id
        if claim_id in self._closed:
            raise Ending.KEY_CLOSED.refusal
        claim = self._claims.get(claim_id)
        if claim is None:
            owned_since = self._owned_since(key.session_id)
            if key.issued_at < max(self._complete_since, self._closed.forgotten_until, owned_since):
                return None
            claim = self._add(key)
        elif claim.is_stale:
            return None
        self._claims.move_to_end(claim_id)
        self._weigh(claim)
        return claim

    async def get(self, key: KeyClaims) -> ClaimState:
        """The claim of a key, read back if necessary. Raises RefusalError for a closed key or an unreadable log; OwnerChangedError."""
        while (claim := self.cached(key)) is None:
            await self._join_take_over(key)
        return claim

    async def ready_for(self, key: KeyClaims, request: ChatRequest) -> ClaimState:
        """The claim of a key, with everything on the log that the request repeats. Raises as `get` does."""
        while (claim := await self.get(key)).must_read_on(request):
            if await claim.read_on(request, self._read_back):
                self.close(key.claim_id)
        return claim

    async def require_open(self, key: KeyClaims) -> None:
        """Raises RefusalError for a closed key, whichever proxy owns its session, or for an unreadable log."""
        claim_id, is_known = key.claim_id, key.issued_at >= max(self._complete_since, self._closed.forgotten_until)
        if not (is_known or claim_id in self._open or claim_id in self._closed):
            if (await self._read_back(key, key.log_offset)).is_over:
                self.close(claim_id)
            else:
                self._open[claim_id] = None
                if len(self._open) > CLAIMS:
                    self._open.popitem(last=False)
        if claim_id in self._closed:
            raise Ending.KEY_CLOSED.refusal

    def release(self, is_ours: Callable[[str], bool]) -> None:
        """Forgets the claims of sessions that other proxies own now; their calls in flight go on."""
        for claim_id, claim in list(self._claims.items()):
            if is_ours(claim.key.session_id):
                continue
            if claim.in_flight:
                claim.is_stale = True
            else:
                self._drop(claim_id)

    def close(self, claim_id: str) -> None:
        """Closes a claim's key: its calls in flight end, further calls are refused."""
        self._closed.add(claim_id)
        self._open.pop(claim_id, None)
        claim = self._drop(claim_id)
        for call in list(claim.in_flight) if claim is not None else ():
            call.end(Ending.KEY_CLOSED)

    async def _join_take_over(self, key: KeyClaims) -> None:
        """Reads the claim's log back, once for all requests that need it at the same time."""
        claim_id = key.claim_id
        task = self._take_overs.get(claim_id)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._take_over(key), name="take over")
            self._take_overs[claim_id] = task

            def ended(done: asyncio.Task[None]) -> None:
                del self._take_overs[claim_id]
                if not done.cancelled():
                    done.exception()  # raised in the requests that still wait

            task.add_done_callback(ended)
        await asyncio.shield(task)

    async def _take_over(self, key: KeyClaims) -> None:
        """Caches the claim, or closes it; does neither if the session's owner changed meanwhile."""
        since = self._owned_since(key.session_id)
        if since == float("inf"):
            raise OwnerChangedError
        log = await self._read_back(key, key.log_offset)
        if log.is_over:
            self.close(key.claim_id)
        if key.claim_id in self._closed or self._owned_since(key.session_id) != since:
            return
        (self._claims.get(key.claim_id) or self._add(key)).take_over(log)

    def _add(self, key: KeyClaims) -> ClaimState:
        while len(self._claims) >= CLAIMS and self._forget_one():
            pass
        claim = self._claims[key.claim_id] = ClaimState(key)
        return claim

    def _weigh(self, claim: ClaimState) -> None:
        """Notes what a claim takes by now, and forgets others beyond the limit."""
        claim_id = claim.key.claim_id
        self.size += claim.size - self._sizes.get(claim_id, 0)
        self._sizes[claim_id] = claim.size
        while self.size > BYTES and self._forget_one(but=claim_id):
            pass

    def _forget_one(self, *, but: str | None = None) -> bool:
        """Forgets the least recently used claim without calls in flight, if there is one."""
        for claim_id, claim in self._claims.items():
            if claim_id != but and not claim.in_flight:
                self._drop(claim_id)
                self._complete_since = max(self._complete_since, claim.key.issued_at + 1)
                return True
        return False

    def _drop(self, claim_id: str) -> ClaimState | None:
        self.size -= self._sizes.pop(claim_id, 0)
        return self._claims.pop(claim_id, None)
