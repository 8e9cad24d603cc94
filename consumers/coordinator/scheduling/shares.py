"""How several coordinators share a pool: `shares` is pure, `Peers` keeps the coordinators' newest heartbeats (protocol 7).

Every coordinator computes the same shares from the same heartbeats; they don't ask one another. They share all slots of the pool, used ones
included. A finished session's slot therefore returns at once to its own coordinator, if that one is within its share, and the others leave
the slot alone. Each coordinator with a demand may use at least one slot, so together they may exceed the slots by one per coordinator;
the ticket in excess lies on the queue until a slot is free. Between a change and the heartbeats that report it (0.1 s), they may exceed
the slots by that change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from topics.types.session import Stage
from topics.workers import Backlog, Heartbeat

ROLE = "coordinator"
PRIORITIES = 8
"""A heartbeat reports only the highest priorities of a stage and pool; sessions of lower ones count under the lowest reported."""


def shares(slots: int, demands: Mapping[str, Mapping[int, int]]) -> dict[str, int]:
    """How many of `slots` each coordinator's sessions may use, by the coordinator's id.

    `demands`: by coordinator and priority, the sessions that have a slot or wait for one. The highest priority is served first. The
    priority for which the slots don't suffice is served in proportion, by largest remainders. Each coordinator with a demand gets at
    least one, and none gets more than its demand. The sum is therefore at most `slots` plus one per coordinator.
    """
    served: Counter[str] = Counter()
    remaining = max(0, slots)
    for priority in sorted({priority for demand in demands.values() for priority in demand}, reverse=True):
        wanted = {name: demands[name].get(priority, 0) for name in sorted(demands)}
        total = sum(wanted.values())
        if total > remaining:
            exact = {name: divmod(remaining * sessions, total) for name, sessions in wanted.items()}
            served.update({name: whole for name, (whole, _) in exact.items()})
            spare = remaining - sum(whole for whole, _ in exact.values())
            served.update(sorted(exact, key=lambda name: -exact[name][1])[:spare])
            break
        served.update(wanted)
        remaining -= total
    least = min(1, max(0, slots))
    return {name: max(served[name], least) if any(demand.values()) else 0 for name, demand in demands.items()}


def backlogs(stage: Stage, pool: str, waiting: Mapping[int, int], active: Mapping[int, int]) -> list[Backlog]:
    """The heartbeat's entries for one stage and pool; `waiting` and `active` are counts by priority."""
    known = sorted({*waiting, *active}, reverse=True)
    groups = [*([priority] for priority in known[: PRIORITIES - 1]), known[PRIORITIES - 1 :]]
    return [
        Backlog(stage, pool, group[0], sum(waiting.get(p, 0) for p in group), sum(active.get(p, 0) for p in group))
        for group in groups
        if group
    ]


class Peers:
    """The live coordinators, this one included, by their newest heartbeats; updated in log order."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._heartbeats: dict[str, Heartbeat] = {}

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        if heartbeat.role != ROLE:
            return
        if heartbeat.leaving:
            self.on_worker_lost(heartbeat.worker_id)
        else:
            self._heartbeats[heartbeat.worker_id] = heartbeat

    def on_worker_lost(self, worker_id: str) -> None:
        self._heartbeats.pop(worker_id, None)

    @property
    def is_alone(self) -> bool:
        """Whether no other coordinator lives."""
        return self._heartbeats.keys() <= {self._worker_id}

    def share(self, stage: Stage, pool: str, slots: int) -> int:
        """How many of the pool's `slots` this coordinator's sessions may use; 0 until its own heartbeat is read back."""
        return self._share(pool, slots, lambda b: b.sessions + b.held if b.stage is stage else 0)

    def share_of_staging(self, pool: str, limit: int) -> int:
        """How many of `limit` staged sessions this coordinator may have."""
        return self._share(pool, limit, _staging)

    def _share(self, pool: str, slots: int, demand_of: Callable[[Backlog], int]) -> int:
        demands: dict[str, Counter[int]] = {name: Counter() for name in self._heartbeats}
        for name, heartbeat in self._heartbeats.items():
            for backlog in heartbeat.backlogs:
                if backlog.pool == pool:
                    demands[name][backlog.priority] += demand_of(backlog)
        return shares(slots, demands).get(self._worker_id, 0)

    def staged_elsewhere(self, pool: str) -> int:
        """Sessions that the other coordinators have staged."""
        return sum(beat.staged.get(pool, 0) for name, beat in self._heartbeats.items() if name != self._worker_id)


def _staging(backlog: Backlog) -> int:
    """Sessions that are staged or wait to be. Sessions with a run ticket are about to leave and don't count."""
    match backlog.stage:
        case Stage.INIT:
            return backlog.sessions + backlog.held
        case Stage.RUN:
            return backlog.sessions
        case Stage.EVALUATE:
            return 0
