"""`HandedOut`: which groups a trainer has trained, for trainers that read rows ahead of their updates. Pure.

    passed = handed_out.add(number, rows, state)   # the group's next row is the one after the first `passed`
    handed_out.give(number)                        # the trainer gets the group's next row
    handed_out.leave_out(number)                   # or it doesn't
    handed_out.batched(numbers)                    # it has made a micro-batch of rows of these groups
    handed_out.trained()                           # it has trained its oldest micro-batch

Invariant: `progress` passes every row that was trained, and no other, except those that were left out before a trained one. The trainer
trains the rows that it gets in their order, and a micro-batch has adjacent ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

State = dict[str, Any]


class Progress(msgspec.Struct, frozen=True):
    """A checkpoint of what was trained."""

    state: State
    """The state of the reading after the last group that was trained completely."""
    partial: dict[int, int] = {}
    """Groups that come after `state` and were trained in part: the number of their rows up to the last that was trained, by the group's
    number."""
    groups: int = 0
    """Number of groups of which rows were trained, without those of `partial`."""


@dataclass
class _Group:
    number: int
    rows: int
    after: State
    passed: int
    """The number of its rows up to the last that was trained."""
    decided: deque[bool] = field(default_factory=deque)
    """For each row after them: whether the trainer got it. Rows that weren't decided on are missing at the end."""

    def train(self) -> None:
        """The trainer has trained the first of these rows that it got."""
        while not self.decided.popleft():
            self.passed += 1
        self.passed += 1


class HandedOut:
    """The groups from the first that isn't trained completely."""

    def __init__(self, progress: Progress) -> None:
        """`progress`: that of the checkpoint, or of the beginning."""
        self._state, self._passed = progress.state, progress.groups
        self._expected = dict(progress.partial)
        """Groups of the checkpoint that were trained in part and weren't read again yet."""
        self._groups: deque[_Group] = deque()
        self._batches: deque[Counter[int]] = deque()

    def add(self, number: int, rows: int, after: State) -> int:
        """Add a group, and the state of the reading after it. Returns the number of its first rows that an earlier process has passed."""
        passed = self._expected.pop(number, 0)
        self._groups.append(_Group(number, rows, after, passed))
        return passed

    def give(self, number: int) -> None:
        """The trainer gets the next row of this group."""
        self._numbered(number).decided.append(True)

    def leave_out(self, number: int) -> None:
        """The trainer doesn't get the next row of this group."""
        self._numbered(number).decided.append(False)

    def batched(self, numbers: Iterable[int]) -> None:
        """Add a micro-batch: for each of its rows the number of its group."""
        self._batches.append(Counter(numbers))

    def trained(self) -> None:
        """Count the oldest micro-batch as trained."""
        batch = self._batches.popleft()
        while batch:
            group = self._groups[0]
            for _ in range(batch.pop(group.number, 0)):
                group.train()
            if batch or group.passed == group.rows:
                self._groups.popleft()
                self._state = group.after
                self._passed += group.passed > 0

    def progress(self) -> Progress:
        """The checkpoint of the rows that were trained so far."""
        partial = {group.number: group.passed for group in self._groups if group.passed}
        return Progress(self._state, self._expected | partial, self._passed)

    def _numbered(self, number: int) -> _Group:
        return next(group for group in self._groups if group.number == number)
