"""What is owed, by partition, and what of it may be tried now: a fold over `polar.webhooks`, and lanes, one a host.

Invariants: a task's newest record counts; a partition's debts are tried only once its log was read to the end, so that what is settled
isn't told again; at most `PER_HOST` deliveries are under way to a host, `TO_ILL_HOST` where the last one failed, and `IN_ALL`. Pure: no
clock, no Kafka.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from topics.webhooks import Owed, Record, Settled

PER_HOST = 8
TO_ILL_HOST = 2
"""A host that hangs holds this many of `IN_ALL`, whatever it is owed."""
IN_ALL = 256


@dataclass(slots=True, eq=False)
class Debt:
    """One task's, as its newest record says."""

    partition: int
    offset: int
    task_id: str
    host: str
    """With its port, where the URL says one."""
    due_ms: int
    value: bytes
    """The record; decoded anew for each try, since lists of rewards are many times their bytes."""

    def __lt__(self, other: Debt) -> bool:
        return (self.due_ms, self.offset) < (other.due_ms, other.offset)


@dataclass
class _Partition:
    debts: dict[str, Debt] = field(default_factory=dict)
    """By task."""
    next_offset: int = 0
    ready: bool = False


@dataclass
class _Lane:
    """One host's."""

    waiting: list[Debt] = field(default_factory=list)
    """A heap; debts that were superseded since are passed over."""
    under_way: int = 0
    ill: bool = False

    @property
    def has_room(self) -> bool:
        return self.under_way < (TO_ILL_HOST if self.ill else PER_HOST)


class Debts:
    """Of all partitions that this process holds."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._lanes: dict[str, _Lane] = {}
        self._under_way: set[str] = set()
        """Tasks, also of partitions that were lost meanwhile."""

    def __len__(self) -> int:
        return sum(len(partition.debts) for partition in self._partitions.values())

    def hold(self, partitions: Iterable[int]) -> None:
        """These and no others are ours; what was known of others is forgotten."""
        kept = set(partitions)
        self._partitions = {number: self._partitions.get(number) or _Partition() for number in kept}

    def unready(self) -> list[int]:
        """Partitions whose log hasn't been read to its end."""
        return [number for number, partition in self._partitions.items() if not partition.ready]

    def ready(self, number: int) -> None:
        """A partition's log was read to its end: what is owed may be tried."""
        partition = self._partitions[number]
        partition.ready = True
        for lane in self._lanes.values():  # of what was read before the last rebalance
            lane.waiting = [debt for debt in lane.waiting if self._counts(debt)]
            heapq.heapify(lane.waiting)
        for debt in partition.debts.values():
            self._queue(debt)

    def read(self, number: int, offset: int, record: Record | None, value: bytes) -> None:
        """A record was read, in order; None: one that says nothing to us."""
        if (partition := self._partitions.get(number)) is None:
            return
        if offset < partition.next_offset:
            # After a rebalance reading begins at the oldest debt again, and much of what follows is settled further on.
            partition = self._partitions[number] = _Partition()
        partition.next_offset = offset + 1
        if record is not None:
            self.write(number, offset, record, value)

    def write(self, number: int, offset: int, record: Record, value: bytes) -> None:
        """A record lies on the log; it counts from now on, though it may not have been read yet."""
        if (partition := self._partitions.get(number)) is None:
            return
        known = partition.debts.get(record.task_id)
        if known is not None and known.offset >= offset:
            return
        match record:
            case Owed(task_id=task_id, url=url, due_ms=due_ms):
                debt = Debt(number, offset, task_id, host_of(url), due_ms, value)
                partition.debts[task_id] = debt
                if partition.ready:
                    self._queue(debt)
            case Settled():
                partition.debts.pop(record.task_id, None)

    def start(self, now_ms: int) -> list[Debt]:
        """What is to be tried now; hosts take turns, those with the least under way first. Each is followed by `finished`."""
        started: list[Debt] = []
        while len(self._under_way) < IN_ALL:
            lanes = [lane for lane in self._open_lanes() if lane.waiting[0].due_ms <= now_ms]
            if not lanes:
                break
            lane = min(lanes, key=lambda lane: (lane.under_way, lane.waiting[0]))
            debt = heapq.heappop(lane.waiting)
            if debt.task_id in self._under_way:
                continue  # read anew while we tell; how that ends will count
            lane.under_way += 1
            self._under_way.add(debt.task_id)
            started.append(debt)
        return started

    def finished(self, debt: Debt, *, ill: bool) -> None:
        """A try is over, and how it ended lies on the log. `ill`: the host didn't do its part."""
        self._under_way.discard(debt.task_id)
        lane = self._lanes[debt.host]
        lane.under_way -= 1
        lane.ill = ill

    def next_due_ms(self) -> int | None:
        """When `start` has something to give next, unless something changes; None: not before something does."""
        if len(self._under_way) >= IN_ALL:
            return None
        return min((lane.waiting[0].due_ms for lane in self._open_lanes()), default=None)

    def low_water(self) -> dict[int, int]:
        """By partition, the offset at which a successor must begin: the oldest debt's, or the next record's."""
        return {
            number: min(partition.next_offset, *(debt.offset for debt in partition.debts.values()))
            if partition.debts
            else partition.next_offset
            for number, partition in self._partitions.items()
            if partition.ready
        }

    def _queue(self, debt: Debt) -> None:
        heapq.heappush(self._lanes.setdefault(debt.host, _Lane()).waiting, debt)

    def _open_lanes(self) -> list[_Lane]:
        """Lanes with something to try and room for it; those that nothing uses any more are removed."""
        for lane in self._lanes.values():
            while lane.waiting and not self._counts(lane.waiting[0]):
                heapq.heappop(lane.waiting)
        self._lanes = {host: lane for host, lane in self._lanes.items() if lane.waiting or lane.under_way}
        return [lane for lane in self._lanes.values() if lane.waiting and lane.has_room]

    def _counts(self, debt: Debt) -> bool:
        partition = self._partitions.get(debt.partition)
        return partition is not None and partition.debts.get(debt.task_id) is debt


def host_of(url: str) -> str:
    """`host[:port]`, as the URL says it, in lower case; empty where that is no URL, which no try will mend."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""
