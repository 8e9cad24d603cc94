"""What the proxy remembers of each claim: its calls in flight, what its acknowledged calls were, and whether its key is closed.

Invariant: a key is honoured only where every `CloseKey` that could name it was seen, or its log was read back (protocol 18). All of it is
bounded: the least recently used claims are forgotten (their next prompt is written in full), and of closed keys the newest are remembered;
a key older than the newest forgotten one is looked up on the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from polar.keys import KeyClaims
from proxy.errors import Refusal, Refused
from proxy.history import History

CLAIMS = 4096
"""Claims remembered; one in use is never forgotten."""
CLOSED = 100_000
"""Closed claims remembered: some 10 MB."""


Ending = Literal["hung_up", "closed", "stopped"]
"""Why a call may be ended from outside."""


class InFlight(Protocol):
    """A call that can be ended."""

    def end(self, reason: Ending) -> None:
        """Ends it soon; nothing more is answered."""
        ...


class Claim:
    """One claim's state."""

    def __init__(self, key: KeyClaims) -> None:
        self.key = key
        self.history = History()
        self.in_flight: set[InFlight] = set()


class Claims:
    """All claims that this proxy serves."""

    def __init__(self, is_over: Callable[[KeyClaims], Awaitable[bool]]) -> None:
        """`is_over` reads a claim's log back."""
        self._is_over = is_over
        self._claims: OrderedDict[str, Claim] = OrderedDict()
        self._closed: OrderedDict[str, float] = OrderedDict()
        self._looking: dict[str, asyncio.Task[bool]] = {}
        self._known_since = float("inf")

    def __len__(self) -> int:
        return len(self._claims)

    def known_from(self, unix_s: float) -> None:
        """From this moment on every `CloseKey` is seen."""
        self._known_since = unix_s

    async def of(self, key: KeyClaims) -> Claim:
        """The state of a key's claim. Raises Refused where it is closed, or whether it is can't be learnt."""
        claim_id = key.claim_id
        is_new = claim_id not in self._claims and claim_id not in self._closed
        if is_new and key.issued_at < self._known_since:
            await self._look_up(key)
        if claim_id in self._closed:
            raise closed()
        claim = self._claims.get(claim_id)
        if claim is None:
            self._make_room()
            claim = self._claims[claim_id] = Claim(key)
        self._claims.move_to_end(claim_id)
        return claim

    def close(self, claim_id: str) -> None:
        """The key is closed: its calls in flight end, its next ones are refused."""
        self._closed[claim_id] = time.time()
        self._closed.move_to_end(claim_id)
        while len(self._closed) > CLOSED:
            _, closed_at = self._closed.popitem(last=False)
            self._known_since = max(self._known_since, closed_at)
        claim = self._claims.pop(claim_id, None)
        for call in list(claim.in_flight) if claim is not None else ():
            call.end("closed")

    async def _look_up(self, key: KeyClaims) -> None:
        """Reads the claim's log back, once for all that ask at the same time."""
        task = self._looking.get(key.claim_id)
        if task is None:
            task = asyncio.ensure_future(self._is_over(key))
            self._looking[key.claim_id] = task
            task.add_done_callback(lambda _: self._looking.pop(key.claim_id, None))
        if await asyncio.shield(task):
            self.close(key.claim_id)

    def _make_room(self) -> None:
        """Forgets the least recently used claim that has no call in flight, if there are too many."""
        if len(self._claims) >= CLAIMS:
            idle = next((claim_id for claim_id, claim in self._claims.items() if not claim.in_flight), None)
            if idle is not None:
                del self._claims[idle]


def closed() -> Refused:
    """What a closed key's calls are told."""
    return Refused(Refusal.CLOSED, "this session is over; its key is closed")
