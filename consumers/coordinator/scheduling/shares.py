"""How several coordinators share a pool: `shares` is pure, `Peers` keeps what their heartbeats say (protocol 7).

All compute the same from the same heartbeats, and nobody asks anybody. What is shared are the pool's slots, those in hand included:
so a finished session's slot falls to its own coordinator at once, as long as that one is within its share, and the others let it be.
Each coordinator with a demand may hold one slot at least, so all together hold at most one more than there are for each of them; such
a ticket lies on the queue until a slot is free. Between a change and the heartbeats that tell of it (0.1 s) they may exceed that by
what changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from topics.types.session import Stage
from topics.workers import Backlog, Heartbeat

ROLE = "coordinator"
PRIORITIES = 8
"""A heartbeat tells so many of a stage and pool, the highest; the others' sessions count as the lowest of these."""


def shares(slots: int, demands: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """How many of `slots` each coordinator's sessions may hold, by its id.

    `demands`: by coordinator and priority, the sessions that hold a slot or want one. The highest priority is served first; the one for
    which it isn't enough is served in proportion, by largest remainders. Who demands anything gets one, so the sum is at most `slots` and
    one for each coordinator; nobody gets more than it demands.
    """
    given: Counter[str] = Counter()
    left = max(0, slots)
    for priority in sorted({priority for asked in demands.values() for priority in asked}, reverse=True):
        asked = {name: demands[name].get(priority, 0) for name in sorted(demands)}
        total = sum(asked.values())
        if total > left:
            exact = {name: divmod(left * sessions, total) for name, sessions in asked.items()}
            given.update({name: whole for name, (whole, _) in exact.items()})
            spare = left - sum(whole for whole, _ in exact.values())
            given.update(sorted(exact, key=lambda name: -exact[name][1])[:spare])
            break
        given.update(asked)
        left -= total
    least = min(1, max(0, slots))
    return {name: max(given[name], least) if any(asked.values()) else 0 for name, asked in demands.items()}


def backlogs(stage: Stage, pool: str, waiting: Mapping[int, int], held: Mapping[int, int]) -> list[Backlog]:
    """What a heartbeat tells of one stage and pool; both by priority."""
    known = sorted({*waiting, *held}, reverse=True)
    groups = [*([priority] for priority in known[: PRIORITIES - 1]), known[PRIORITIES - 1 :]]
    return [
        Backlog(stage, pool, group[0], sum(waiting.get(p, 0) for p in group), sum(held.get(p, 0) for p in group))
        for group in groups
        if group
    ]


class Peers:
    """The live coordinators, this one included, by their newest heartbeats; fed in log order."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._beats: dict[str, Heartbeat] = {}

    def beat(self, heartbeat: Heartbeat) -> None:
        if heartbeat.role != ROLE:
            return
        if heartbeat.leaving:
            self.lost(heartbeat.worker_id)
        else:
            self._beats[heartbeat.worker_id] = heartbeat

    def lost(self, worker_id: str) -> None:
        self._beats.pop(worker_id, None)

    @property
    def is_alone(self) -> bool:
        """Whether no other coordinator lives."""
        return self._beats.keys() <= {self._own_id}

    def share(self, stage: Stage, pool: str, slots: int) -> int:
        """How many of the pool's `slots` this coordinator's sessions may hold; 0 until its own heartbeat is read back."""
        return self._own(pool, slots, lambda told: told.sessions + told.held if told.stage is stage else 0)

    def share_of_staging(self, pool: str, limit: int) -> int:
        """How many of `limit` sessions this coordinator may have between an INIT ticket and a run claim."""
        return self._own(pool, limit, _staging)

    def _own(self, pool: str, slots: int, demand_of: Callable[[Backlog], int]) -> int:
        demands: dict[str, Counter[int]] = {name: Counter() for name in self._beats}
        for name, beat in self._beats.items():
            for told in beat.backlogs:
                if told.pool == pool:
                    demands[name][told.priority] += demand_of(told)
        return shares(slots, demands).get(self._own_id, 0)

    def staged_elsewhere(self, pool: str) -> int:
        """Sessions that the other coordinators have staged."""
        return sum(beat.staged.get(pool, 0) for name, beat in self._beats.items() if name != self._own_id)


def _staging(told: Backlog) -> int:
    """Sessions that are staged, or want to be. One whose run ticket is out is about to leave, and isn't counted."""
    match told.stage:
        case Stage.INIT:
            return told.sessions + told.held
        case Stage.RUN:
            return told.sessions
        case Stage.EVALUATE:
            return 0
