"""Pending deliveries by partition, and which of them may be attempted now: a fold over `polar.webhooks`. Pure: no clock, no Kafka.

Invariants: a task's newest record counts. A partition's deliveries are attempted only after its log was read to the end, so that no
settled delivery is repeated. At most `PER_HOST` deliveries to one host are in progress, `PER_FAILING_HOST` if its last one failed, and
`IN_ALL` in all.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from topics.webhooks import Owed, Record, Settled

PER_HOST = 8
"""Enough for a host that answers, few enough not to overload it."""
PER_FAILING_HOST = 2
"""A host that hangs occupies no more than this of `IN_ALL`."""
IN_ALL = 256
"""Connections of one process."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One task's pending delivery, as its newest record describes it."""

    partition: int
    offset: int
    task_id: str
    host: str
    """With the port, if the URL names one."""
    due_ms: int
    value: bytes
    """The record, encoded: a list of rewards in memory takes many times its bytes."""

    def __lt__(self, other: Delivery) -> bool:
        return (self.due_ms, self.offset) < (other.due_ms, other.offset)


@dataclass
class _Partition:
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    """By task."""
    next_offset: int = 0
    is_ready: bool = False


@dataclass
class _Host:
    waiting: list[Delivery] = field(default_factory=list)
    """A heap; superseded deliveries stay until they reach its top."""
    in_progress: int = 0
    is_failing: bool = False

    @property
    def has_room(self) -> bool:
        return self.in_progress < (PER_FAILING_HOST if self.is_failing else PER_HOST)


class PendingDeliveries:
    """The pending deliveries of all partitions assigned to this process."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._hosts: dict[str, _Host] = {}
        self._in_progress: set[str] = set()
        """Task ids, including those of partitions that were lost meanwhile."""

    def __len__(self) -> int:
        return sum(len(partition.deliveries) for partition in self._partitions.values())

    def assign(self, partitions: Iterable[int]) -> None:
        """Keep these partitions and forget all others."""
        self._partitions = {number: self._partitions.get(number) or _Partition() for number in set(partitions)}

    def unready(self) -> list[int]:
        """Partitions whose log hasn't been read to its end."""
        return [number for number, partition in self._partitions.items() if not partition.is_ready]

    def set_ready(self, number: int) -> None:
        """A partition's log was read to its end: its deliveries may be attempted."""
        partition = self._partitions[number]
        partition.is_ready = True
        for host in self._hosts.values():  # remove what was read before the last rebalance
            host.waiting = [delivery for delivery in host.waiting if self._is_current(delivery)]
            heapq.heapify(host.waiting)
        for delivery in partition.deliveries.values():
            self._queue(delivery)

    def on_read(self, number: int, offset: int, record: Record | None, value: bytes) -> None:
        """A record was read, in log order; None if it is of an unknown type."""
        if (partition := self._partitions.get(number)) is None:
            return
        if offset < partition.next_offset:
            # After a rebalance reading restarts at the oldest pending delivery; later records may settle what follows.
            partition = self._partitions[number] = _Partition()
        partition.next_offset = offset + 1
        if record is not None:
            self.on_written(number, offset, record, value)

    def on_written(self, number: int, offset: int, record: Record, value: bytes) -> None:
        """A record is on the log and counts from now on, even if it hasn't been read back."""
        if (partition := self._partitions.get(number)) is None:
            return
        known = partition.deliveries.get(record.task_id)
        if known is not None and known.offset >= offset:
            return
        match record:
            case Owed(task_id=task_id, url=url, due_ms=due_ms):
                delivery = Delivery(number, offset, task_id, host_of(url), due_ms, value)
                partition.deliveries[task_id] = delivery
                if partition.is_ready:
                    self._queue(delivery)
            case Settled():
                partition.deliveries.pop(record.task_id, None)

    def start_due(self, now_ms: int) -> list[Delivery]:
        """The deliveries to attempt now, each to be followed by `finish`. Hosts with the fewest in progress come first."""
        started: list[Delivery] = []
        while len(self._in_progress) < IN_ALL:
            hosts = [host for host in self._available_hosts() if host.waiting[0].due_ms <= now_ms]
            if not hosts:
                break
            host = min(hosts, key=lambda host: (host.in_progress, host.waiting[0]))
            delivery = heapq.heappop(host.waiting)
            if delivery.task_id in self._in_progress:
                continue  # read again during the attempt, whose result will count
            host.in_progress += 1
            self._in_progress.add(delivery.task_id)
            started.append(delivery)
        return started

    def finish(self, delivery: Delivery, *, is_failing: bool) -> None:
        """An attempt has ended, and its result is on the log. `is_failing`: the host failed."""
        self._in_progress.discard(delivery.task_id)
        host = self._hosts[delivery.host]
        host.in_progress -= 1
        host.is_failing = is_failing

    def next_due_ms(self) -> int | None:
        """When `start_due` next returns a delivery, unless something changes before; None: not before something changes."""
        if len(self._in_progress) >= IN_ALL:
            return None
        return min((host.waiting[0].due_ms for host in self._available_hosts()), default=None)

    def resume_offsets(self) -> dict[int, int]:
        """By partition, the offset from which a successor must read: the oldest pending delivery's, or the next record's.

        Only of partitions of which something was read.
        """
        return {
            number: min([partition.next_offset, *(delivery.offset for delivery in partition.deliveries.values())])
            for number, partition in self._partitions.items()
            if partition.is_ready and partition.next_offset
        }

    def _queue(self, delivery: Delivery) -> None:
        heapq.heappush(self._hosts.setdefault(delivery.host, _Host()).waiting, delivery)

    def _available_hosts(self) -> list[_Host]:
        """Hosts with a waiting delivery and room for it; hosts without any delivery are removed."""
        for host in self._hosts.values():
            while host.waiting and not self._is_current(host.waiting[0]):
                heapq.heappop(host.waiting)
        self._hosts = {name: host for name, host in self._hosts.items() if host.waiting or host.in_progress}
        return [host for host in self._hosts.values() if host.waiting and host.has_room]

    def _is_current(self, delivery: Delivery) -> bool:
        partition = self._partitions.get(delivery.partition)
        return partition is not None and partition.deliveries.get(delivery.task_id) is delivery


def host_of(url: str) -> str:
    """`host[:port]` of the URL, in lower case; empty if the URL is invalid."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return ""
