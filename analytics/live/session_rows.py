"""The newest sessions, one row each, as a list of them shows them: a fold over the log with a bound.

Invariant: what a row says doesn't depend on the order in which the topics were read; among the sessions that were met, the `LIMIT` with the
newest changes are kept. Figures of a running session count from its `Open`: they are null if reading began later.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import msgspec

from analytics import health
from analytics.health import Flag
from topics.completions import CallRecord, Open
from topics.events import (
    Claimed,
    Evaluated,
    Fact,
    HandedBack,
    InitFinished,
    RunFinished,
    SessionOpenRequested,
    Stopped,
    TaskSubmitted,
)
from topics.sessions import Row
from topics.types.completion import Completion
from topics.types.session import Phase, SessionState, Stage, TaskState, session_id_of, task_id_of
from topics.types.tokens import count
from topics.types.trajectory import Trajectory

LIMIT = 10_000
"""Sessions kept. A tenth more are in memory at times, so that sorting stays rare."""
STAGES = 32
"""Stages of one session that are kept: three of each attempt, and some repeated evaluations."""
MESSAGE_LIMIT = 500
"""Characters of an error's message."""
BEFORE_RUN = frozenset(phase.value for phase in (Phase.UNOPENED, Phase.QUEUED, Phase.INIT, Phase.READY))
"""Phases of a session that has no calls yet."""


class RowError(msgspec.Struct, frozen=True, gc=False):
    stage: str
    kind: str
    code: str
    message: str
    """May contain text of an agent."""


class SessionRow(msgspec.Struct, gc=False):
    """A session in a list. Times are Unix ms of the log; null: unknown, or not yet."""

    session_id: str
    task_id: str
    sample_index: int
    group_size: int | None = None
    """Samples of its task."""
    run: str | None = None
    label: str | None = None
    harness: str | None = None
    phase: str = Phase.QUEUED.value
    status: str | None = None
    reward: float | None = None
    attempt: int = 1
    flags: list[str] | None = None
    """Health flags so far. Null: unknown, since its trajectory, or while it runs its calls, weren't read; so in rows of the lake."""
    error: RowError | None = None
    submitted_at: int | None = None
    """When its task came; null if that lies before what was read."""
    changed_at: int = 0
    ended_at: int | None = None
    calls: int | None = None
    sampled_tokens: int | None = None
    trainable_tokens: int | None = None
    masked_tokens: int | None = None
    policy_version: int | None = None
    """The newest that sampled for it."""


class StageTime(msgspec.Struct, gc=False):
    """One worker's work on a stage of an attempt."""

    attempt: int
    stage: str
    queued_at: int | None
    """When it began to wait; null: unknown."""
    claimed_at: int | None
    finished_at: int | None
    worker: str | None
    outcome: str | None
    """`finished`, a status, `<kind>/<code>` of an error, `handed_back` or `stopped`; null: nothing was reported."""


class _Task(msgspec.Struct):
    num_samples: int | None = None
    run: str | None = None
    harness: str | None = None
    submitted_at: int | None = None


class _Entry:
    __slots__ = ("call_flags", "claim_id", "is_built", "is_known", "row", "row_flags", "stages")

    def __init__(self, row: SessionRow) -> None:
        self.row = row
        self.is_known = False
        """Whether the session's own row was read."""
        self.is_built = False
        """Whether its trajectory was read: its figures count."""
        self.claim_id: str | None = None
        """The claim whose calls are counted."""
        self.row_flags: list[Flag] = []
        self.call_flags: set[Flag] = set()
        self.stages: dict[str, StageTime] = {}
        """By claim id, in the order of the log."""

    def set_flags(self) -> None:
        if not (
            self.is_built if self.row.phase == Phase.ENDED.value else self.claim_id or self.row.phase in BEFORE_RUN
        ):
            self.row.flags = None
            return
        flags = self.call_flags.union(self.row_flags)
        self.row.flags = [flag.value for flag in Flag if flag in flags]


class SessionRows:
    """Takes records of the followed topics with their timestamps (Unix ms), in order within a topic."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._entries: dict[str, _Entry] = {}
        self._versions: OrderedDict[str, int] = OrderedDict()
        """Number of the newest change of each entry, ascending."""
        self._tasks: dict[str, _Task] = {}
        self.version = 0
        """Number of changes so far."""

    def row(self, record: Row, at_ms: int) -> None:
        """Take a record of `polar.sessions`."""
        match record:
            case TaskState():
                self._set_task(record)
            case SessionState():
                self._set_session(record, at_ms)

    def tombstone(self, key: str) -> None:
        """The row of `polar.sessions` with this key was deleted."""
        kind, _, name = key.partition(":")
        if kind == "task":
            self._tasks.pop(name, None)
        elif kind == "session":
            self._entries.pop(name, None)
            self._versions.pop(name, None)

    def fact(self, fact: Fact, at_ms: int) -> None:
        """Take a record of `polar.events`."""
        match fact:
            case TaskSubmitted() | SessionOpenRequested():
                task = self._tasks.setdefault(fact.task_id, _Task())
                if task.submitted_at is None or at_ms < task.submitted_at:
                    task.submitted_at = at_ms
                    self._show_task(fact.task_id)
            case Claimed():
                stages = self._entry(fact.session_id).stages
                if fact.claim_id not in stages and len(stages) < STAGES:
                    stages[fact.claim_id] = StageTime(
                        fact.attempt, fact.stage.value, None, at_ms, None, fact.worker_id, None
                    )
            case InitFinished():
                self._finish(fact, Stage.INIT, "finished", at_ms)
            case RunFinished():
                self._finish(fact, Stage.RUN, fact.status.value, at_ms)
            case Evaluated():
                self._finish(fact, Stage.EVALUATE, "finished", at_ms)
            case HandedBack():
                self._finish(fact, None, "handed_back", at_ms)
            case Stopped():
                self._finish(fact, None, "stopped", at_ms)

    def call(self, record: CallRecord, at_ms: int) -> None:
        """Take a record of `polar.completions`."""
        if not isinstance(record, Open | Completion):
            return
        entry = self._entry(record.session_id)
        row = entry.row
        if entry.is_built or row.phase == Phase.ENDED.value:
            return
        if isinstance(record, Open):
            entry.claim_id = record.claim_id
            entry.call_flags = set()
            row.calls, row.sampled_tokens, row.policy_version = 0, 0, None
        elif record.claim_id != entry.claim_id:
            return
        else:
            row.calls = (row.calls or 0) + 1
            row.sampled_tokens = (row.sampled_tokens or 0) + count(record.sampled)
            row.policy_version = _newest(row.policy_version, record.policy_version)
            entry.call_flags.update(health.of_call(record))
        entry.set_flags()
        self._changed(entry, at_ms)

    def trajectory(self, record: Trajectory, at_ms: int) -> None:
        """Take a trajectory that the builder wrote."""
        entry = self._entry(record.session_id)
        row, stats = entry.row, record.stats
        entry.is_built = True
        entry.call_flags = set(health.of_trajectory(record))
        row.ended_at = at_ms
        row.calls = stats.calls
        row.sampled_tokens = stats.sampled_tokens
        row.trainable_tokens = stats.trainable_tokens
        row.masked_tokens = sum(stats.masked_tokens.values())
        row.policy_version = None
        for call in record.calls:
            row.policy_version = _newest(row.policy_version, call.policy_version)
        entry.set_flags()
        self._changed(entry, at_ms)

    def rows(self, limit: int, after: tuple[int, str] | None = None) -> list[SessionRow]:
        """At most `limit` rows, the newest changes first, ids ascending where equal; `after`: those behind this time and id."""
        known = sorted(
            (-entry.row.changed_at, name, entry.row) for name, entry in self._entries.items() if entry.is_known
        )
        found = (row for at, name, row in known[: self._limit] if after is None or (at, name) > (-after[0], after[1]))
        return list(islice(found, limit))

    def changed_since(self, version: int, limit: int) -> tuple[list[SessionRow], int]:
        """The rows that changed after `version`, at most `limit`, the oldest change first, and the version that they reach."""
        names = []
        for name in reversed(self._versions):
            if self._versions[name] <= version:
                break
            names.append(name)
        names = names[::-1][:limit]
        rows = [entry.row for name in names if (entry := self._entries[name]).is_known]
        return rows, self._versions[names[-1]] if len(names) == limit else self.version

    def one(self, session_id: str) -> SessionRow | None:
        """A session's row; None: it isn't among those that are kept."""
        entry = self._entries.get(session_id)
        return entry.row if entry is not None and entry.is_known else None

    def timeline(self, session_id: str) -> list[StageTime]:
        """The stages of a session that were read, in the order of the log, each with the time from which it waited."""
        entry = self._entries.get(session_id)
        return [] if entry is None else list(_queued(entry.row.submitted_at, list(entry.stages.values())))

    def _set_task(self, state: TaskState) -> None:
        task = self._tasks.setdefault(state.task_id, _Task())
        task.num_samples = state.num_samples or None
        if state.plan is not None:
            task.run = None if state.plan.run is None else sys.intern(state.plan.run)
            task.harness = sys.intern(state.plan.harness)
        self._show_task(state.task_id)

    def _show_task(self, task_id: str) -> None:
        for index in range(self._tasks[task_id].num_samples or 0):
            entry = self._entries.get(session_id_of(task_id, index))
            if entry is not None and self._copy_task(entry):
                self._changed(entry, entry.row.changed_at)

    def _copy_task(self, entry: _Entry) -> bool:
        """Copy what the task says; False if the row said so before. A task's row is written whenever one of its sessions ends."""
        row, task = entry.row, self._tasks.get(entry.row.task_id)
        if task is None:
            return False
        before = row.group_size, row.run, row.harness, row.submitted_at
        row.group_size, row.run, row.harness = task.num_samples, task.run, task.harness
        row.submitted_at = task.submitted_at
        return before != (row.group_size, row.run, row.harness, row.submitted_at)

    def _set_session(self, state: SessionState, at_ms: int) -> None:
        entry = self._entry(state.session_id)
        row, error = entry.row, state.error or state.evaluation_error
        entry.is_known = True
        row.label, row.phase, row.reward, row.attempt = state.label, state.phase.value, state.reward, state.attempt
        row.status = None if state.status is None else state.status.value
        row.error = None
        if error is not None:
            row.error = RowError(error.stage, error.kind.value, error.code, error.message[:MESSAGE_LIMIT])
        if state.phase is Phase.ENDED and not entry.is_built:
            row.ended_at, row.calls, row.trainable_tokens = at_ms, state.calls, state.trainable_tokens
        entry.row_flags = health.of_row(state)
        entry.set_flags()
        self._changed(entry, at_ms)

    def _finish(
        self,
        fact: InitFinished | RunFinished | Evaluated | HandedBack | Stopped,
        stage: Stage | None,
        outcome: str,
        at_ms: int,
    ) -> None:
        """Note how a claim ended. `stage`: None if only a known claim counts."""
        stages = self._entry(fact.session_id).stages
        if fact.claim_id not in stages:
            if stage is None or len(stages) >= STAGES:
                return
            stages[fact.claim_id] = StageTime(fact.attempt, stage.value, None, None, None, None, None)
        ended = stages[fact.claim_id]
        if ended.finished_at is None:
            error = getattr(fact, "error", None)
            ended.finished_at = at_ms
            ended.outcome = outcome if error is None else f"{error.kind.value}/{error.code}"

    def _entry(self, session_id: str) -> _Entry:
        entry = self._entries.get(session_id)
        if entry is None:
            index = session_id.rpartition(".")[2]
            row = SessionRow(session_id, task_id_of(session_id), int(index) if index.isdecimal() else 0)
            entry = self._entries[session_id] = _Entry(row)
            self._copy_task(entry)
            self._trim()
        return entry

    def _changed(self, entry: _Entry, at_ms: int) -> None:
        name = entry.row.session_id
        entry.row.changed_at = max(entry.row.changed_at, at_ms)
        self.version += 1
        self._versions[name] = self.version
        self._versions.move_to_end(name)

    def _trim(self) -> None:
        if len(self._entries) <= self._limit + self._limit // 10:
            return
        # The entry that was added last has no time yet, and stays.
        *others, _ = self._entries
        others.sort(key=lambda name: (-self._entries[name].row.changed_at, name))
        for name in others[self._limit - 1 :]:
            del self._entries[name]
            self._versions.pop(name, None)


def _newest(known: int | None, version: int | None) -> int | None:
    return version if known is None else known if version is None else max(known, version)


def _queued(submitted_at: int | None, stages: list[StageTime]) -> Iterator[StageTime]:
    """The stages with `queued_at`: the end of the stage before in the same attempt, or the task's submission for the first."""
    ends: dict[tuple[int, str], int | None] = {}
    before = {Stage.RUN.value: Stage.INIT.value, Stage.EVALUATE.value: Stage.RUN.value}
    for stage in stages:
        ends[stage.attempt, stage.stage] = stage.finished_at
        if stage.stage in before:
            queued_at = ends.get((stage.attempt, before[stage.stage]))
        else:
            queued_at = submitted_at if stage.attempt == 1 else None
        yield msgspec.structs.replace(stage, queued_at=queued_at)
