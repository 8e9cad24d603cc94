"""The owner of each session: the live proxies by `polar.workers`, and rendezvous hashing among them (protocol 20).

The live set is a fold over that topic, in the broker's time: all proxies that have read as far have the same set, and an outage of Kafka,
in which nothing is read, changes nothing. Invariant: this process is an owner only if the topic says that it lives, like any other proxy.
`proxy/session/claim_cache.py` acts on ownership, `proxy/peers/routing.py` finds the owner for a request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import structlog

from proxy.rendezvous import ranked
from topics.log import kafka
from topics.log.liveness import Leases
from topics.workers import Heartbeat, Sign

LAG_S = 5.0
"""Time within which every proxy has read a change; until then another may still act on the previous set."""
BEHIND_S = 2.0
"""Time for this proxy to read a change that another proxy already acts on."""
EPOCHS = 64
"""Live sets kept; a session that was ours in all of them is ours since the oldest."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Peer:
    """A live proxy."""

    worker_id: str
    address: str
    """The base URL that it advertises."""


class LiveSet:
    """The live proxies that own sessions: a fold over `polar.workers`, in log order."""

    def __init__(self) -> None:
        self._leases = Leases()
        self._addresses: dict[str, str] = {}
        self._leaving: set[str] = set()
        self._superseded: dict[str, str] = {}
        """Proxies by the one that took their address."""

    def apply(self, sign: Sign, append_ms: int) -> None:
        """Applies one record; `append_ms` is the broker's time."""
        for worker_id in self._leases.tick(append_ms):
            self._forget(worker_id)
        if isinstance(sign, Heartbeat) and sign.role == "proxy" and sign.address is not None:
            self._beat(sign.worker_id, sign.address, leaving=sign.leaving)

    @property
    def leased(self) -> frozenset[str]:
        """Worker ids with a lease, including proxies that are leaving."""
        return self._leases.worker_ids()

    @property
    def owners(self) -> dict[str, Peer]:
        """The proxies that sessions are distributed among, by worker id."""
        return {
            worker_id: Peer(worker_id, address)
            for worker_id, address in self._addresses.items()
            if worker_id not in self._leaving
        }

    def _beat(self, worker_id: str, address: str, *, leaving: bool) -> None:
        if self._superseded.get(worker_id, "") in self._leases:
            return
        # Whoever took its address is lost, and it still beats.
        self._superseded.pop(worker_id, None)
        if worker_id not in self._leases:
            self._supersede(worker_id, address)
        self._leases.renew(worker_id)
        self._addresses[worker_id] = address
        if leaving:
            self._leaving.add(worker_id)

    def _supersede(self, by: str, address: str) -> None:
        """Removes other proxies at a new proxy's address: one restarted on its port needn't wait for its predecessor's lease to end."""
        for worker_id in [other for other, known in self._addresses.items() if known == address]:
            log.info("proxy superseded", action="proxy_superseded", worker_id=worker_id, by=by, address=address)
            self._leases.end(worker_id)
            self._forget(worker_id)
            self._superseded |= dict.fromkeys(
                (known for known, other in self._superseded.items() if other == worker_id), by
            )
            self._superseded[worker_id] = by

    def _forget(self, worker_id: str) -> None:
        del self._addresses[worker_id]
        self._leaving.discard(worker_id)


@dataclass(frozen=True)
class _Epoch:
    """A live set, since when it holds, and the offset of the record that made it.

    The time is in Unix seconds, by this host's clock or the record's, whichever is ahead.
    """

    since: float
    offset: int
    owners: Mapping[str, Peer]


class Ownership:
    """This proxy's view of the owners."""

    def __init__(self, worker_id: str, clock: Callable[[], float] = time.time) -> None:
        self._worker_id = worker_id
        self._clock = clock
        self._stamped = 0.0, time.monotonic()
        """The latest time of a record, in Unix seconds of the broker, and our monotonic time when we read it."""
        self._live = LiveSet()
        self._leaves = False
        self._epochs = deque([_Epoch(0.0, -1, MappingProxyType({}))], maxlen=EPOCHS)
        self._read = -1
        """Offset of the last record read."""
        self._advance = asyncio.Event()
        """Set when the next record is read."""
        self._leased: frozenset[str] = frozenset()
        self._change = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @property
    def lives(self) -> bool:
        """Whether this proxy is in the live set."""
        return self._worker_id in self.peers

    @property
    def peers(self) -> Mapping[str, Peer]:
        """The live proxies, this one among them."""
        return self._epochs[-1].owners

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a function to call at each change of the live set."""
        self._listeners.append(listener)

    def on_sign(self, sign: Sign, record: kafka.Record) -> None:
        """Applies a record of `polar.workers`."""
        self._live.apply(sign, record.timestamp)
        self._read = record.offset
        self._advance.set()
        self._advance = asyncio.Event()
        stamped, read_at = self._stamped
        if record.timestamp / 1000 >= stamped + time.monotonic() - read_at:
            self._stamped = record.timestamp / 1000, time.monotonic()
        self._look(max(self._clock(), record.timestamp / 1000))

    def now(self) -> float:
        """Unix seconds by this host's clock or the broker's, whichever is ahead, or was."""
        stamped, read_at = self._stamped
        return max(self._clock(), stamped + time.monotonic() - read_at)

    def leave(self) -> None:
        """This proxy owns no sessions from this moment on."""
        self._leaves = True
        self._look(self._epochs[-1].since)

    @property
    def as_of(self) -> int:
        """Offset of the record that made this live set."""
        return self._epochs[-1].offset

    async def caught_up(self, as_of: int) -> None:
        """Returns when this proxy has read up to offset `as_of`, or after 2 s."""
        if self._read >= as_of:
            return
        try:
            async with asyncio.timeout(BEHIND_S):
                while self._read < as_of:
                    await self._advance.wait()
        except TimeoutError:
            pass

    def owner_of(self, session_id: str) -> Peer | None:
        """The owner of a session; None if there is no live proxy."""
        owners = self.peers
        return owners[ranked(session_id, owners)[0]] if owners else None

    def is_mine(self, session_id: str) -> bool:
        """Whether this proxy owns the session."""
        return self._is_ours(session_id, self.peers)

    def since(self, session_id: str) -> float:
        """Since when this proxy has certainly been the only owner, in Unix seconds; infinity if it isn't the owner."""
        if not self.is_mine(session_id):
            return float("inf")
        for before, after in reversed(list(pairwise(self._epochs))):
            if not self._is_ours(session_id, before.owners):
                return after.since + (LAG_S if before.owners else 0.0)
        return self._epochs[0].since + LAG_S

    def is_lost(self, peer: Peer) -> bool:
        """Whether a proxy's lease has ended, so that a request sent to it may never be answered."""
        return peer.worker_id not in self._leased

    def next_change(self) -> asyncio.Event:
        """An event that is set at the next change of the live set or of leases."""
        return self._change

    def _is_ours(self, session_id: str, owners: Mapping[str, Peer]) -> bool:
        if self._worker_id not in owners:
            return False
        return len(owners) == 1 or ranked(session_id, owners)[0] == self._worker_id

    def _look(self, now: float) -> None:
        owners, leased = self._live.owners, self._live.leased
        if self._leaves:
            owners.pop(self._worker_id, None)
        moved = owners != self._epochs[-1].owners
        if not moved and leased == self._leased:
            return
        self._leased = leased
        if moved:
            log.info("live proxies", action="live_proxies", workers=sorted(owners))
            self._epochs.append(_Epoch(now, self._read, MappingProxyType(owners)))
            for listener in self._listeners:
                listener()
        self._change.set()
        self._change = asyncio.Event()
