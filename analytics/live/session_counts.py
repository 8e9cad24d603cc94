"""Phase, status and reward of every session, compact enough for a million: a byte and a float each, and one entry per task.

Invariant: counts are those of the newest row of each key, in whatever order the keys came; in a compacted log a session may come before
its task. The groups shown are those of which a session changed its phase last.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from topics.types.session import Phase, SessionState, Status, TaskState, task_id_of

RECENT = 32
"""Number of groups shown; twice as many are kept, so that sorting stays rare."""
PHASE_STATUSES: list[tuple[Phase, Status | None]] = [(phase, status) for phase in Phase for status in (None, *Status)]
CODES = {pair: code for code, pair in enumerate(PHASE_STATUSES, start=1)}
ABSENT = 0
NO_REWARD = math.nan
K = TypeVar("K")


class Group(msgspec.Struct, frozen=True):
    task_id: str
    num_samples: int
    ended: int
    """Number of samples with a trajectory."""
    rewards: list[float | None]
    """By sample index; None: not known."""
    mean: float | None
    """Mean of the known rewards."""
    std: float | None
    """Population standard deviation of the known rewards."""
    moved_at: int
    """Unix ms: when a sample of it last changed its phase."""

    @property
    def is_finished(self) -> bool:
        return 0 < self.num_samples == self.ended


class _Task:
    __slots__ = ("codes", "is_known", "num_samples", "pool", "rewards")

    def __init__(self) -> None:
        self.is_known = False
        """Whether the task's own row was read."""
        self.pool = ""
        self.num_samples = 0
        self.codes = bytearray()
        """By sample index: one of CODES, or ABSENT."""
        self.rewards = array("d")


class SessionCounts:
    """Counts the rows of `polar.sessions`."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        """Sessions by pool (empty: unknown or none) and code."""
        self._moved: dict[str, int] = {}
        self.tasks = 0

    def task(self, row: TaskState) -> None:
        task = self._tasks.setdefault(row.task_id, _Task())
        self.tasks += not task.is_known
        task.is_known = True
        task.num_samples = row.num_samples
        self._move_pool(task, "" if row.plan is None else sys.intern(row.plan.pool))

    def session(self, row: SessionState, at_ms: int) -> tuple[str, Phase | None]:
        """Add a session's row; returns its pool, if known, and its previous phase, None for a new session."""
        task = self._tasks.setdefault(row.task_id, _Task())
        index = row.sample_index
        if len(task.codes) <= index:
            more = index + 1 - len(task.codes)
            task.codes.extend(bytes(more))
            task.rewards.extend([NO_REWARD] * more)
        before, after = task.codes[index], CODES[row.phase, row.status]
        task.codes[index] = after
        task.rewards[index] = NO_REWARD if row.reward is None else row.reward
        self._count(task.pool, before, -1)
        self._count(task.pool, after, 1)
        if row.phase not in (Phase.QUEUED, Phase.UNOPENED):
            self._remember(row.task_id, at_ms)
        return task.pool, None if before == ABSENT else PHASE_STATUSES[before - 1][0]

    def forget(self, key: str) -> None:
        """Remove the row with this key, which has a tombstone."""
        kind, _, name = key.partition(":")
        task_id = name if kind == "task" else task_id_of(name)
        task = self._tasks.get(task_id)
        if task is None:
            return
        if kind == "task":
            self.tasks -= task.is_known
            task.is_known = False
            task.num_samples = 0
            self._move_pool(task, "")
        else:
            index = int(name.rpartition(".")[2])
            if index < len(task.codes):
                self._count(task.pool, task.codes[index], -1)
                task.codes[index] = ABSENT
                task.rewards[index] = NO_REWARD
        if not task.is_known and not any(task.codes):
            del self._tasks[task_id]
            self._moved.pop(task_id, None)

    def phases(self) -> dict[Phase, int]:
        return self._sums(lambda _, phase, __: phase)

    def statuses(self) -> dict[Status, int]:
        """Ended sessions by status."""
        return self._sums(lambda _, phase, status: status if phase is Phase.ENDED else None)

    def by_pool(self) -> dict[tuple[str, Phase], int]:
        """Sessions by pool and phase; sessions without a pool are left out."""
        return self._sums(lambda pool, phase, _: (pool, phase) if pool else None)

    def _sums(self, key: Callable[[str, Phase, Status | None], K | None]) -> dict[K, int]:
        """Sessions by `key` of their pool, phase and status; sessions without a key are left out."""
        found: Counter[K] = Counter()
        for (pool, code), count in self._counts.items():
            if (name := key(pool, *PHASE_STATUSES[code - 1])) is not None:
                found[name] += count
        return dict(found)

    def groups(self) -> list[Group]:
        """The groups in which a session changed its phase last, the newest first."""
        newest = sorted(self._moved.items(), key=lambda moved: (-moved[1], moved[0]))[:RECENT]
        return [_group(task_id, self._tasks[task_id], at) for task_id, at in newest]

    def _count(self, pool: str, code: int, by: int) -> None:
        if code == ABSENT:
            return
        self._counts[pool, code] += by
        if not self._counts[pool, code]:
            del self._counts[pool, code]

    def _move_pool(self, task: _Task, pool: str) -> None:
        if pool == task.pool:
            return
        for code in task.codes:
            self._count(task.pool, code, -1)
            self._count(pool, code, 1)
        task.pool = pool

    def _remember(self, task_id: str, at_ms: int) -> None:
        self._moved[task_id] = max(at_ms, self._moved.get(task_id, 0))
        if len(self._moved) > 2 * RECENT:
            newest = sorted(self._moved, key=lambda name: -self._moved[name])[:RECENT]
            self._moved = {name: self._moved[name] for name in newest}


def _group(task_id: str, task: _Task, moved_at: int) -> Group:
    samples = max(task.num_samples, len(task.codes))
    rewards = [reward if math.isfinite(reward) else None for reward in task.rewards]
    rewards += [None] * (samples - len(rewards))
    mean, std = mean_and_std(rewards)
    ended = sum(PHASE_STATUSES[code - 1][0] is Phase.ENDED for code in task.codes if code != ABSENT)
    return Group(task_id, samples, ended, rewards, mean, std, moved_at)


def mean_and_std(rewards: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and population standard deviation of the known rewards; None if none is known."""
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return None, None
    # Computed without sums or squares that overflow, since evaluators may give any numbers.
    mean = math.fsum(reward / len(known) for reward in known)
    return mean, math.hypot(*(reward - mean for reward in known)) / math.sqrt(len(known))
