"""What a trainer has been given, partition by partition: pure, fed with records, asked for a state.

Invariant: a state describes exactly what was handed out when it was taken. A fold made from it and fed each partition from its
`start` on hands out all the rest, each item once, wherever in the log, or in a re-reading, the state was taken. Reading is `reader.py`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import structlog

from polar.trainer.groups import Group, Patience, is_usable
from topics.types.errors import InputError
from topics.types.trajectory import GroupFinished, Trajectory

VERSION = 1
"""Of the state's form."""

log = structlog.get_logger()

Items = Literal["trajectories", "groups"]
T_co = TypeVar("T_co", covariant=True)


class Mark(msgspec.Struct, frozen=True):
    """How far one partition was handed out, in offsets."""

    start: int
    """Where to read from: the first record of the oldest group that is not whole yet, else `next`."""
    next: int
    """What ended before it was handed out."""
    early: list[str] = []
    """Task ids of groups that were handed out before `next` and have their end behind it."""


class State(msgspec.Struct, frozen=True):
    """A checkpoint. As a dictionary it holds what JSON has."""

    namespace: str
    topic: str
    items: Items | None
    """What was handed out; None where nothing was asked for yet."""
    partitions: dict[int, Mark]
    """By number; a string in the dictionary's form, as JSON has it."""
    version: int = VERSION

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> State:
        """Raises InputError where it isn't what `to_dict` makes."""
        try:
            state = msgspec.convert(given, cls, str_keys=True)
        except msgspec.ValidationError as error:
            raise InputError("state", given, f"not a consumer's state_dict(): {error}") from None
        if state.version != VERSION:
            raise InputError("state.version", state.version, f"this Polar reads version {VERSION}")
        return state

    def to_dict(self) -> dict[str, Any]:
        """For JSON, or for a checkpoint beside the weights."""
        made: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return made


class Fold(Protocol[T_co]):
    """Records of all partitions in, each partition's in order; items out."""

    skipped: Counter[str]

    def take(self, partition: int, offset: int, record: object, written_ms: int = 0) -> T_co | None:
        """The item that this record completes, if any; handed out with that. `written_ms`: its timestamp."""

    def due(self) -> T_co | None:
        """An item that isn't whole and shall wait no longer, if there is one; handed out with that."""

    def due_ms(self) -> int | None:
        """When `due` will have one though no record comes; None: never."""

    def reached(self, partition: int, offset: int) -> None:
        """Nothing that concerns a trainer lies before `offset` any more: ends of transactions take up offsets, too."""

    def passed(self, now_ms: int) -> None:
        """All that was written before that time has been taken, in every partition."""

    def marks(self) -> dict[int, Mark]: ...


class Trajectories:
    """Hands out each trajectory."""

    def __init__(self, marks: Mapping[int, Mark], skipped: Counter[str]) -> None:
        self._next = {partition: mark.next for partition, mark in marks.items()}
        self.skipped = skipped

    def take(self, partition: int, offset: int, record: object, written_ms: int = 0) -> Trajectory | None:
        del written_ms  # nothing here waits
        self._next[partition] = offset + 1
        return record if isinstance(record, Trajectory) else None

    def due(self) -> None:
        return None

    def due_ms(self) -> None:
        return None

    def reached(self, partition: int, offset: int) -> None:
        self._next[partition] = max(offset, self._next[partition])

    def passed(self, now_ms: int) -> None:
        """Nothing here waits."""

    def marks(self) -> dict[int, Mark]:
        return {partition: Mark(offset, offset) for partition, offset in self._next.items()}


@dataclass
class _Open:
    """A group on its way."""

    first: int
    """Offset of its first trajectory."""
    began_ms: int
    """When that was written."""
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
    """Behind the last record that was taken."""
    next: int
    """Groups that ended, or were early, before it were acted on: the position, but for what is being read again."""
    early: set[str]
    """Handed out before their end, which isn't read yet."""
    open: dict[str, _Open] = field(default_factory=dict)
    """By task id."""
    now_ms: int = 0
    """The newest time that a record of it, or the end of its log, has told."""

    def mark(self) -> Mark:
        start = min((group.first for group in self.open.values()), default=self.position)
        return Mark(start, max(self.position, self.next), sorted(self.early))

    def deadlines(self, patience: Patience) -> dict[str, int]:
        """When each group with enough usable samples shall wait no longer, by task id. Nothing is due while the log is read again."""
        if self.position < self.next:
            return {}
        return {
            task_id: group.began_ms + patience.within_ms
            for task_id, group in self.open.items()
            if group.usable >= patience.at_least
        }


class Groups:
    """Hands out each group when its end is read, or when it has waited long enough.

    Holds the trajectories of those that are not whole: of all tasks in flight. The clock is the log's own: a trainer that was away
    for an hour loses no sample that lies on the log.
    """

    def __init__(
        self, marks: Mapping[int, Mark], skipped: Counter[str], patience: Callable[[], Patience | None] = lambda: None
    ) -> None:
        self._partitions = {
            partition: _Partition(mark.start, mark.next, set(mark.early)) for partition, mark in marks.items()
        }
        self._patience = patience
        self.skipped = skipped

    def take(self, partition: int, offset: int, record: object, written_ms: int = 0) -> Group | None:
        at = self._partitions[partition]
        at.position = offset + 1
        at.now_ms = max(at.now_ms, written_ms)
        match record:
            case Trajectory() if record.task_id in at.early:
                self.skipped["late_sample"] += offset >= at.next
            case Trajectory():
                at.open.setdefault(record.task_id, _Open(offset, written_ms)).add(record)
            case GroupFinished() if record.task_id in at.early:
                at.early.discard(record.task_id)
            case GroupFinished():
                ended = at.open.pop(record.task_id, None)
                if offset >= at.next:
                    return self._whole(record, ended)
        return None

    def due(self) -> Group | None:
        patience = self._patience()
        if patience is None:
            return None
        for at in self._partitions.values():
            for task_id, deadline_ms in at.deadlines(patience).items():
                if at.now_ms >= deadline_ms:
                    at.early.add(task_id)
                    return at.open.pop(task_id).group(task_id)
        return None

    def due_ms(self) -> int | None:
        patience = self._patience()
        if patience is None:
            return None
        return min((ms for at in self._partitions.values() for ms in at.deadlines(patience).values()), default=None)

    def reached(self, partition: int, offset: int) -> None:
        at = self._partitions[partition]
        at.position = max(offset, at.position)

    def passed(self, now_ms: int) -> None:
        for at in self._partitions.values():
            at.now_ms = max(at.now_ms, now_ms)

    def marks(self) -> dict[int, Mark]:
        return {partition: at.mark() for partition, at in self._partitions.items()}

    def _whole(self, finished: GroupFinished, opened: _Open | None) -> Group | None:
        """None where reading began behind the group's first trajectories."""
        found = 0 if opened is None else len(opened.trajectories)
        if opened is not None and found == finished.num_samples:
            return opened.group(finished.task_id)
        self.skipped["incomplete_group"] += 1
        log.warning(
            "a group began before reading did",
            action="trainer.incomplete_group",
            task=finished.task_id,
            found=found,
            samples=finished.num_samples,
        )
        return None
