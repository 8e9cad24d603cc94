"""The table of one partition, made again from the other topics, for a `polar.sessions` that was lost.

A pure fold over all of the partition's `polar.completions`, then all of its `polar.events`. What was written counts: a session with a
trajectory has ended, and one whose `Build` waits for the builder is being built. Every other session starts over in a new attempt; the
claims of its earlier runs stay closed. A session that was opened for a user's own agent can't start over: its key is closed, and what was
captured is built, without a reward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from consumers.coordinator import opened
from consumers.coordinator.commands import Decision
from consumers.coordinator.endings import build
from consumers.coordinator.groups import close_group
from topics.completions import Build, CallRecord, CloseGroup, Open
from topics.events import (
    CancelRequested,
    Fact,
    GroupEmitted,
    SessionCloseRequested,
    SessionOpenRequested,
    SessionOpenWithdrawn,
    TaskSubmitted,
    TrajectoryEmitted,
)
from topics.types.errors import Kind, SessionError
from topics.types.session import Phase, SessionState, Status, TaskState, session_id_of, task_id_of

LOST = SessionError("run", Kind.INFRA, "table_lost", "polar.sessions was lost while this session was open")


class Rebuilding:
    """Feed it the partition's records in log order, then take `decisions`."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskState] = {}
        self._opens: dict[str, list[Open]] = {}
        """By session id, in order."""
        self._builds: dict[str, Build] = {}
        """By session id. Its `TrajectoryEmitted` is among the facts, or comes after them."""
        self._closed_groups: set[str] = set()
        """Tasks whose `CloseGroup` is written."""
        self._ends: dict[str, TrajectoryEmitted] = {}
        self._closes: defaultdict[str, list[str]] = defaultdict(list)
        """By task id: the sessions that somebody has asked to close, in order."""
        self._asked: dict[str, int] = {}
        """By claim of an opened session: how many closes of its task came before its request. A close before it was refused."""
        self._labels: dict[str, str | None] = {}
        """By claim of an opened session."""
        self._withdrawn: dict[str, frozenset[str]] = {}
        """By claim of an opened session: the sessions of its task that were closed before its withdrawal, which then withdrew nothing."""

    def on_call_record(self, record: CallRecord) -> None:
        """Take in a record of `polar.completions`."""
        match record:
            case Open():
                self._opens.setdefault(record.session_id, []).append(record)
            case Build():
                self._builds[record.session_id] = record
            case CloseGroup():
                self._closed_groups.add(record.task_id)

    def on_fact(self, fact: Fact, now: int) -> None:
        """Take in a record of `polar.events`; `now` is the clock of the new table, in ms."""
        match fact:
            case TaskSubmitted():
                self._begin(
                    fact.task_id,
                    num_samples=fact.num_samples,
                    body_hash=fact.body_hash,
                    body=fact.body,
                    body_ref=fact.body_ref,
                    plan=fact.plan,
                )
            case SessionOpenRequested():
                self._labels[fact.claim_id] = fact.label
                self._asked.setdefault(fact.claim_id, len(self._closes[fact.task_id]))
                plan = opened.plan(fact)
                self._begin(fact.task_id, num_samples=fact.num_samples or 1, body_hash="", plan=plan, opened_at=now)
            case SessionOpenWithdrawn():
                since = self._closes[fact.task_id][self._asked.get(fact.claim_id, 0) :]
                self._withdrawn.setdefault(fact.claim_id, frozenset(since))
            case SessionCloseRequested():
                self._closes[task_id_of(fact.session_id)].append(fact.session_id)
            case CancelRequested():
                task = self._tasks.get(fact.task_id) or TaskState(fact.task_id, cancelled_at=now)
                sessions = [*task.cancelled_sessions, *([fact.session_id] if fact.session_id else [])]
                is_whole = task.cancelled or fact.session_id is None
                self._tasks[fact.task_id] = replace(task, cancelled=is_whole, cancelled_sessions=sessions)
            case TrajectoryEmitted():
                self._ends[fact.session_id] = fact
            case GroupEmitted() if fact.task_id in self._tasks:
                task = self._tasks[fact.task_id]
                self._tasks[fact.task_id] = replace(task, closed_at=now, body=None, body_ref=None)

    def decisions(self, now: int) -> Iterator[Decision]:
        """For each task its rows, and the records that they call for, at clock `now` in ms."""
        return (self._task(task, now) for task in self._tasks.values())

    def _begin(self, task_id: str, **known: Any) -> None:
        """The first that names a task decides what it is."""
        task = self._tasks.get(task_id) or TaskState(task_id)
        if task.body_hash is None:
            self._tasks[task_id] = replace(task, **known)

    def _task(self, task: TaskState, now: int) -> Decision:
        if task.body_hash is None:
            return Decision(tasks=(task,))
        decided = [self._session(task, index, now) for index in range(task.num_samples)]
        sessions = tuple(session for each in decided for session in each.sessions)
        records = tuple(record for each in decided for record in each.records)
        ended = [session for session in sessions if session.phase is Phase.ENDED]
        usable = sum(session.trainable_tokens > 0 and session.reward is not None for session in ended)
        task = replace(task, ended=len(ended), usable=usable)
        if task.ended == task.num_samples and task.closed_at is None and task.task_id not in self._closed_groups:
            records = (*records, close_group(task, sessions))
        return Decision(tasks=(task,), sessions=sessions, records=records)

    def _session(self, task: TaskState, index: int, now: int) -> Decision:
        name = session_id_of(task.task_id, index)
        opens = self._opens.get(name, [])
        runs = [each.claim_id for each in opens if each.claim_id]
        attempt = max((each.attempt for each in opens), default=0)
        if (end := self._ends.get(name)) is not None:
            return Decision(sessions=(replace(_ended(task, index, end, runs, now), label=self._label(runs)),))
        if task.closed_at is not None:
            # Its end has left the log before that of its group.
            over = SessionState(name, task.task_id, index, Phase.ENDED, now, attempt, past_claims=runs)
            return Decision(sessions=(over,))
        if (waiting := self._builds.get(name)) is not None:
            return Decision(sessions=(_building(task, waiting, runs, now),))
        if task.opened_at is None:
            session = SessionState(name, task.task_id, index, Phase.QUEUED, now, attempt + 1, past_claims=runs)
        elif runs and name in self._withdrawn.get(runs[-1], {name}):
            return Decision(sessions=(replace(_closing(task, index, runs, now), label=self._label(runs)),))
        else:
            session = SessionState(name, task.task_id, index, Phase.UNOPENED, now, past_claims=runs)
        if task.cancelled or name in task.cancelled_sessions:
            return build(task, replace(session, status=Status.CANCELLED), now)
        return Decision(sessions=(session,))

    def _label(self, runs: list[str]) -> str | None:
        """The label of the session with these claims, whose last one counts."""
        return self._labels.get(runs[-1]) if runs else None


def _closing(task: TaskState, index: int, runs: list[str], now: int) -> SessionState:
    """An opened session whose agent may still work; of its claims `runs` the last one counts."""
    return SessionState(
        session_id_of(task.task_id, index), task.task_id, index, Phase.CLOSING, now,
        claim_id=runs[-1], run_claim_id=runs[-1], past_claims=runs[:-1], status=Status.FAILED, error=LOST,
    )  # fmt: skip


def _ended(task: TaskState, index: int, end: TrajectoryEmitted, runs: list[str], now: int) -> SessionState:
    return SessionState(
        end.session_id, task.task_id, index, Phase.ENDED, now, end.attempt,
        status=end.status, error=end.error, reward=end.reward, calls=end.calls, trainable_tokens=end.trainable_tokens,
        run_claim_id=runs[-1] if runs else None, past_claims=runs[:-1],
    )  # fmt: skip


def _building(task: TaskState, waiting: Build, runs: list[str], now: int) -> SessionState:
    return SessionState(
        waiting.session_id, task.task_id, waiting.sample_index, Phase.BUILDING, now, waiting.attempt,
        run_claim_id=waiting.claim_id or None,
        past_claims=[claim for claim in runs if claim != waiting.claim_id],
        status=waiting.status,
        error=waiting.error,
        reward=waiting.reward,
        reward_reason=waiting.reward_reason,
        call_rewards=waiting.call_rewards,
        artifacts=waiting.artifacts,
        accounting=waiting.accounting,
        label=waiting.label,
        reward_needs_call=waiting.reward_needs_call,
    )  # fmt: skip
