"""Where every session of the table stands, small enough for a million of them: a byte and a reward each, and one entry a task.

Invariant: the counts are those of the newest row of each key, in whatever order the keys came; a session may come before its task, as
it may in a compacted log. Which groups are worth showing is known by when a session of theirs moved last.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable

import msgspec

from topics.types.session import Phase, SessionState, Status, TaskState, task_id_of

RECENT = 32
"""Groups that are told of; twice as many are remembered, so that they are sorted seldom."""
STANDINGS: list[tuple[Phase, Status | None]] = [(phase, status) for phase in Phase for status in (None, *Status)]
CODES = {standing: code for code, standing in enumerate(STANDINGS, start=1)}
ABSENT = 0
NO_REWARD = math.nan


class Group(msgspec.Struct, frozen=True):
    """One task's samples."""

    task_id: str
    num_samples: int
    ended: int
    """Samples whose trajectory is out."""
    rewards: list[float | None]
    """By sample index; None where none is known (yet)."""
    mean: float | None
    """Of the rewards that are known."""
    std: float | None
    """Of the population."""
    moved_at: int
    """Unix ms: when a sample of it last changed its phase."""

    @property
    def is_finished(self) -> bool:
        return 0 < self.num_samples == self.ended


class _Task:
    __slots__ = ("codes", "is_known", "num_samples", "pool", "rewards")

    def __init__(self) -> None:
        self.is_known = False
        """Its own row was read."""
        self.pool = ""
        self.num_samples = 0
        self.codes = bytearray()
        """By sample index: one of CODES, or ABSENT."""
        self.rewards = array("d")


class Standings:
    """Fed with the rows of `polar.sessions`."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._counts: Counter[tuple[str, int]] = Counter()
        """Sessions by pool (empty: not known, or none) and code."""
        self._moved: dict[str, int] = {}
        self.tasks = 0

    def task(self, row: TaskState) -> None:
        task = self._tasks.setdefault(row.task_id, _Task())
        self.tasks += not task.is_known
        task.is_known = True
        task.num_samples = row.num_samples
        self._move_pool(task, "" if row.plan is None else sys.intern(row.plan.pool))

    def session(self, row: SessionState, at_ms: int) -> tuple[str, Phase | None]:
        """Its pool, as far as it is known, and its phase before, None where it is new."""
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
        return task.pool, None if before == ABSENT else STANDINGS[before - 1][0]

    def forget(self, key: str) -> None:
        """A tombstone, by the row's key."""
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
        """Sessions by phase."""
        found: Counter[Phase] = Counter()
        for (_, code), count in self._counts.items():
            found[STANDINGS[code - 1][0]] += count
        return dict(found)

    def statuses(self) -> dict[Status, int]:
        """Ended sessions by status."""
        found: Counter[Status] = Counter()
        for (_, code), count in self._counts.items():
            phase, status = STANDINGS[code - 1]
            if phase is Phase.ENDED and status is not None:
                found[status] += count
        return dict(found)

    def in_pools(self) -> dict[tuple[str, Phase], int]:
        """Sessions by pool and phase, where workers have a part in them."""
        found: Counter[tuple[str, Phase]] = Counter()
        for (pool, code), count in self._counts.items():
            if pool:
                found[pool, STANDINGS[code - 1][0]] += count
        return dict(found)

    def groups(self) -> list[Group]:
        """Those that moved last, the newest first."""
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
    ended = sum(STANDINGS[code - 1][0] is Phase.ENDED for code in task.codes if code != ABSENT)
    return Group(task_id, samples, ended, rewards, mean, std, moved_at)


def mean_and_std(rewards: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Of the rewards that are numbers; std is the population's. None where there is none."""
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return None, None
    # Neither a sum nor a square that overflows, whatever numbers an evaluator gives.
    mean = math.fsum(reward / len(known) for reward in known)
    return mean, math.hypot(*(reward - mean for reward in known)) / math.sqrt(len(known))
