"""Tracks per partition which items a trainer received. Pure: records in, items and a state out; `reader.py` reads the records.

Invariant: a state describes exactly the items yielded when it was saved. A fold made from a state, and fed each partition from its `start`,
yields every other item exactly once, even if the state was saved while records were being read again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec
import structlog

from polar.trainer.groups import Group, GroupDeadline, is_usable
from topics.log.last_read import LastRead
from topics.types.errors import InputError
from topics.types.trajectory import GroupFinished, Trajectory

VERSION = 1
"""Version of the state's format."""

log = structlog.get_logger()

Items = Literal["trajectories", "groups"]
T = TypeVar("T")


class Mark(msgspec.Struct, frozen=True):
    """How far the items of one partition were yielded, in offsets."""

    start: int
    """Where to read from: the first record of the oldest incomplete group, otherwise `next`."""
    next: int
    """Items that ended before this offset were yielded."""
    early: list[str] = []
    """Task ids of groups that were yielded incomplete and whose end lies at `next` or later."""
    last: LastRead | None = None
    """The newest record before `next` that was read; None: none was, or an older Polar saved the state."""


class State(msgspec.Struct, frozen=True):
    """A checkpoint; its dictionary form has JSON values only."""

    namespace: str
    topic: str
    items: Items | None
    """Which items were yielded; None: none were requested yet."""
    partitions: dict[int, Mark]
    """By partition number, which is a string in the dictionary form, as in JSON."""
    version: int = VERSION
    run: str | None = None
    """The run whose items alone were yielded; None: those of all runs."""

    @classmethod
    def from_dict(cls, state_dict: Mapping[str, Any]) -> State:
        """The state whose `to_dict` this is. Raises InputError for anything else."""
        try:
            state = msgspec.convert(state_dict, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise InputError("state", state_dict, f"not a consumer's state_dict(): {error}") from None
        if state.version != VERSION:
            raise InputError("state.version", state.version, f"this Polar reads version {VERSION}")
        return state

    def to_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return made


class Fold(ABC, Generic[T]):
    """Takes the records of all partitions, each partition's in order, and yields items."""

    skipped: Counter[str]

    @abstractmethod
    def take(self, partition: int, offset: int, record: object, written_ms: int = 0) -> T | None:
        """The item that this record completes, which counts as yielded; None: none. `written_ms`: the record's timestamp."""

    @abstractmethod
    def reached(self, partition: int, offset: int) -> None:
        """Every record before `offset` was taken; transaction markers also occupy offsets."""

    @abstractmethod
    def marks(self) -> dict[int, Mark]:
        """The progress of each partition."""

    def due(self) -> T | None:
        """An incomplete item that must wait no longer, which counts as yielded; None: none."""

    def due_ms(self) -> int | None:
        """The time, Unix ms, at which `due` returns an item even if no record comes; None: never."""

    def passed(self, now_ms: int) -> None:
        """All records written before `now_ms`, in all partitions, were taken."""


class Trajectories(Fold[Trajectory]):
    def __init__(self, marks: Mapping[int, Mark], skipped: Counter[str]) -> None:
        self._next = {partition: mark.next for partition, mark in marks.items()}
        self._last = {partition: mark.last for partition, mark in marks.items()}
        self.skipped = skipped

    def take(self, partition: int, offset: int, record: object, written_ms: int = 0) -> Trajectory | None:
        self._next[partition], self._last[partition] = offset + 1, LastRead(offset, written_ms)
        return record if isinstance(record, Trajectory) else None

    def reached(self, partition: int, offset: int) -> None:
        self._next[partition] = max(offset, self._next[partition])

    def marks(self) -> dict[int, Mark]:
        return {partition: Mark(offset, offset, last=self._last[partition]) for partition, offset in self._next.items()}


@dataclass
class _OpenGroup:
    first: int
    """Offset of its first trajectory."""
    began_ms: int
    """Timestamp of its first trajectory."""
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    """By sample index."""
    usable: int = 0

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories[trajectory.sample_index] = trajectory
        self.usable += is_usable(trajectory)

    def group(self, task_id: str) -> Group:
        return Group(task_id, [self.trajectories[index] for index in sorted(self.trajectories)])


@dataclass
class _Partition:
    position: int
    """The offset after the last record taken."""
    next: int
    """Records before this offset have had their effect; greater than `position` while records are read again."""
    early: set[str]
    """Task ids of groups that were yielded incomplete and whose end wasn't read yet."""
    open: dict[str, _OpenGroup] = field(default_factory=dict)
    """By task id."""
    now_ms: int = 0
    """The newest timestamp of its records, or the time at which its end was reached."""
    last: LastRead | None = None
    """As in `Mark`."""

    def mark(self) -> Mark:
        start = min((group.first for group in self.open.values()), default=self.position)
        return Mark(start, max(self.position, self.next), sorted(self.early), self.last)

    def deadlines(self, deadline: GroupDeadline) -> dict[str, int]:
        """By task id, the time at which each group with enough usable samples is yielded. Empty while records are read again."""
        if self.position < self.next:
            return {}
        return {
            task_id: group.began_ms + deadline.within_ms
            for task_id, group in self.open.items()
            if group.usable >= deadline.at_least
        }


class Groups(Fold[Group]):
    """Yields each group when its end is read, or at its deadline.

    Keeps the trajectories of incomplete groups, those of all tasks in flight. Deadlines use the log's timestamps: a trainer that was away
    for an hour loses no sample that is on the log.
    """

    def __init__(
        self,
        marks: Mapping[int, Mark],
        skipped: Counter[str],
        deadline: Callable[[], GroupDeadline | None] = lambda: None,
    ) -> None:
        self._partitions = {
            partition: _Partition(mark.start, mark.next, set(mark.early), last=mark.last)
            for partition, mark in marks.items()
        }
        self._deadline = deadline
        self.skipped = skipped

    def take(self, partition: int, offset: int, record: object, written_ms: int = 0) -> Group | None:
        at = self._partitions[partition]
        at.position = offset + 1
        at.now_ms = max(at.now_ms, written_ms)
        if offset >= at.next:
            at.last = LastRead(offset, written_ms)
        match record:
            case Trajectory() if record.task_id in at.early:
                self.skipped["late_sample"] += offset >= at.next
            case Trajectory():
                at.open.setdefault(record.task_id, _OpenGroup(offset, written_ms)).add(record)
            case GroupFinished() if record.task_id in at.early:
                at.early.discard(record.task_id)
            case GroupFinished():
                ended = at.open.pop(record.task_id, None)
                if offset >= at.next:
                    return self._whole(record, ended)
        return None

    def due(self) -> Group | None:
        deadline = self._deadline()
        if deadline is None:
            return None
        for at in self._partitions.values():
            for task_id, deadline_ms in at.deadlines(deadline).items():
                if at.now_ms >= deadline_ms:
                    at.early.add(task_id)
                    return at.open.pop(task_id).group(task_id)
        return None

    def due_ms(self) -> int | None:
        deadline = self._deadline()
        if deadline is None:
            return None
        return min((ms for at in self._partitions.values() for ms in at.deadlines(deadline).values()), default=None)

    def reached(self, partition: int, offset: int) -> None:
        at = self._partitions[partition]
        at.position = max(offset, at.position)

    def passed(self, now_ms: int) -> None:
        for at in self._partitions.values():
            at.now_ms = max(at.now_ms, now_ms)

    def marks(self) -> dict[int, Mark]:
        return {partition: at.mark() for partition, at in self._partitions.items()}

    def _whole(self, finished: GroupFinished, opened: _OpenGroup | None) -> Group | None:
        """The complete group; None if reading began after its first trajectories."""
        found = 0 if opened is None else len(opened.trajectories)
        if opened is not None and found == finished.num_samples:
            return opened.group(finished.task_id)
        self.skipped["incomplete_group"] += 1
        counts = {"found": found, "samples": finished.num_samples}
        log.warning(
            "a group began before reading did", action="trainer.incomplete_group", task=finished.task_id, **counts
        )
        return None
