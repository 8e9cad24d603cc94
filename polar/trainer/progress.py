"""What a trainer has been given, partition by partition: pure, fed with records, asked for a state.

Invariant: a state describes exactly what was handed out when it was taken. A fold made from it and fed each partition from its
`start` on hands out all the rest, each item once, wherever in the log, or in a re-reading, the state was taken. Reading is `reader.py`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import structlog

from polar.types.errors import InputError
from polar.types.session import Status
from polar.types.trajectory import GroupFinished, Trajectory

VERSION = 1
"""Of the state's form."""

log = structlog.get_logger()

Items = Literal["trajectories", "groups"]
T_co = TypeVar("T_co", covariant=True)


class Group(msgspec.Struct, frozen=True):
    """All samples of one task, whole."""

    task_id: str
    trajectories: list[Trajectory]
    """By sample index."""

    @property
    def rewards(self) -> list[float | None]:
        """By sample index; None where no evaluator gave one: such a sample belongs into no baseline."""
        return [trajectory.reward for trajectory in self.trajectories]

    @property
    def statuses(self) -> list[Status]:
        """By sample index."""
        return [trajectory.status for trajectory in self.trajectories]


class Mark(msgspec.Struct, frozen=True):
    """How far one partition was handed out, in offsets."""

    start: int
    """Where to read from: the first record of the oldest group that is not whole yet, else `next`."""
    next: int
    """What ended before it was handed out."""


class State(msgspec.Struct, frozen=True):
    """A checkpoint. As a dictionary it holds strings and numbers alone."""

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

    def take(self, partition: int, offset: int, record: object) -> T_co | None:
        """The item that this record completes, if any; handed out with that."""

    def reached(self, partition: int, offset: int) -> None:
        """Nothing that concerns a trainer lies before `offset` any more: ends of transactions take up offsets, too."""

    def marks(self) -> dict[int, Mark]: ...


class Trajectories:
    """Hands out each trajectory."""

    def __init__(self, marks: Mapping[int, Mark], skipped: Counter[str]) -> None:
        self._next = {partition: mark.next for partition, mark in marks.items()}
        self.skipped = skipped

    def take(self, partition: int, offset: int, record: object) -> Trajectory | None:
        self._next[partition] = offset + 1
        return record if isinstance(record, Trajectory) else None

    def reached(self, partition: int, offset: int) -> None:
        self._next[partition] = max(offset, self._next[partition])

    def marks(self) -> dict[int, Mark]:
        return {partition: Mark(offset, offset) for partition, offset in self._next.items()}


@dataclass
class _Open:
    """A group on its way."""

    first: int
    """Offset of its first trajectory."""
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    """By sample index."""


@dataclass
class _Partition:
    position: int
    """Behind the last record that was taken."""
    next: int
    """Ends of groups before it were acted on: the position, but for what is being read again."""
    open: dict[str, _Open] = field(default_factory=dict)
    """By task id."""

    def mark(self) -> Mark:
        start = min((group.first for group in self.open.values()), default=self.position)
        return Mark(start, max(self.position, self.next))


class Groups:
    """Hands out each group when its end is read. Holds the trajectories of those that are not whole: of all tasks in flight."""

    def __init__(self, marks: Mapping[int, Mark], skipped: Counter[str]) -> None:
        self._partitions = {partition: _Partition(mark.start, mark.next) for partition, mark in marks.items()}
        self.skipped = skipped

    def take(self, partition: int, offset: int, record: object) -> Group | None:
        at = self._partitions[partition]
        at.position = offset + 1
        match record:
            case Trajectory():
                at.open.setdefault(record.task_id, _Open(offset)).trajectories[record.sample_index] = record
            case GroupFinished():
                opened = at.open.pop(record.task_id, None)
                if offset >= at.next:
                    return self._whole(record, opened)
        return None

    def reached(self, partition: int, offset: int) -> None:
        at = self._partitions[partition]
        at.position = max(offset, at.position)

    def marks(self) -> dict[int, Mark]:
        return {partition: at.mark() for partition, at in self._partitions.items()}

    def _whole(self, finished: GroupFinished, opened: _Open | None) -> Group | None:
        """None where reading began behind the group's first trajectories."""
        found = {} if opened is None else opened.trajectories
        if len(found) == finished.num_samples:
            return Group(finished.task_id, [found[index] for index in sorted(found)])
        self.skipped["incomplete_group"] += 1
        log.warning(
            "a group began before reading did",
            action="trainer.incomplete_group",
            task=finished.task_id,
            found=len(found),
            samples=finished.num_samples,
        )
        return None
