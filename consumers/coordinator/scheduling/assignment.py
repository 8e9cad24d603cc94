"""Who gets the pool's free slots. Credit belongs to a pool and so to all partitions, `decide` to one; `lend` is pure and stands between.

No ticket goes ahead of a free slot: one of a lower priority would lie before that of a session which comes later. INIT tickets flow only
while a pool's sessions between INIT ticket and run claim are under `ready_limit` (`Room`), so that sandboxes don't pile up before the
run slots. Which slots are free is the ledger's knowledge.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from consumers.coordinator.commands import SlotLent
from topics.types.session import Stage


@dataclass(frozen=True)
class Free:
    """Free slots of one worker's stage, and the queue partitions that it reads."""

    worker_id: str
    stage: Stage
    pool: str
    partitions: tuple[int, ...]
    slots: int


class Want(NamedTuple):
    """Sessions of one partition that want a slot."""

    partition: int
    stage: Stage
    pool: str
    priority: int
    user: str
    sessions: int


@dataclass(frozen=True)
class Lent:
    """A slot for one partition of `polar.events`."""

    partition: int
    slot: SlotLent


@dataclass(frozen=True)
class Room:
    """How many more sessions of a pool may be between an INIT ticket and a run claim.

    Those of a lower priority don't count for one of a higher: it must not wait until they have run. `most` bounds them all.
    """

    limit: int
    """The pool's `ready_limit`, or this coordinator's share of it."""
    most: int
    """The pool's `ready_limit` and INIT slots, less what other coordinators have staged."""
    staged: Mapping[int, int]
    """This coordinator's, by priority."""

    def left(self, priority: int) -> int:
        """For sessions of this priority; may be negative."""
        rivals = sum(sessions for staged_at, sessions in self.staged.items() if staged_at >= priority)
        return min(self.limit - rivals, self.most - sum(self.staged.values()))


Line = tuple[Stage, str]
"""A stage and a pool."""


@dataclass(frozen=True)
class Credit:
    """What bounds a round besides free slots and wants."""

    in_hand: Mapping[Line, Mapping[str, int]]
    """By user: sessions with a ticket or a claim."""
    shares: Mapping[Line, int]
    """More slots that this coordinator may hold; all, where none is said."""
    rooms: Mapping[str, Room]
    """By pool."""


def lend(free: Sequence[Free], wants: Iterable[Want], credit: Credit) -> list[Lent]:
    """Share free slots among the wants of all partitions.

    The highest priority first; at one priority the user with the fewest sessions in hand, then those first that stand first in `wants`;
    a user's partitions take turns in that order. Workers take turns, so that load is even, and a worker's slots go round its queue
    partitions, so that a ticket that came to nothing is steered elsewhere the next time.
    """
    lines: dict[Line, dict[int, list[Want]]] = {}
    for want in wants:
        lines.setdefault((want.stage, want.pool), {}).setdefault(want.priority, []).append(want)
    lent: list[Lent] = []
    for line, by_priority in lines.items():
        stage, pool = line
        places = _places(free, line)[: max(0, credit.shares[line]) if line in credit.shares else None]
        in_hand = Counter(credit.in_hand.get(line, {}))
        taken = 0
        for priority in sorted(by_priority, reverse=True):
            most = len(places)
            if stage is Stage.INIT:
                # All that this round has lent so far is of this priority or a higher one.
                most = min(most, max(taken, credit.rooms[pool].left(priority))) if pool in credit.rooms else taken
            turns = _turns(by_priority[priority], in_hand)
            for (worker_id, queue_partition), want in zip(places[taken:most], turns, strict=False):
                slot = SlotLent(stage, pool, worker_id, queue_partition, priority, want.user)
                lent.append(Lent(want.partition, slot))
                taken += 1
    return lent


def _places(free: Sequence[Free], line: Line) -> list[tuple[str, int]]:
    """A worker and one of its queue partitions for each free slot."""
    able = [worker for worker in free if (worker.stage, worker.pool) == line and worker.partitions]
    able.sort(key=lambda worker: -worker.slots)
    return [
        (worker.worker_id, worker.partitions[n % len(worker.partitions)])
        for n in range(max((worker.slots for worker in able), default=0))
        for worker in able
        if n < worker.slots
    ]


def _turns(wants: Iterable[Want], in_hand: Counter[str]) -> Iterator[Want]:
    """Who is next, again and again, until all have what they want; each is counted in `in_hand`."""
    queues: dict[str, deque[tuple[Want, int]]] = {}
    for want in wants:
        if want.sessions > 0:
            queues.setdefault(want.user, deque()).append((want, want.sessions))
    order = count()
    users = [(in_hand[user], next(order), user) for user in queues]
    heapq.heapify(users)
    while users:
        _, _, user = heapq.heappop(users)
        queue = queues[user]
        want, sessions = queue.popleft()
        if sessions > 1:
            queue.append((want, sessions - 1))
        in_hand[user] += 1
        if queue:
            heapq.heappush(users, (in_hand[user], next(order), user))
        yield want
