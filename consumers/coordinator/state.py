"""The table of one partition: tasks, sessions, and the indexes over them that `decide` and the scheduler need.

Rows change only through `apply`, `load`, `fill` and `delete`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from consumers.coordinator.commands import Decision
from consumers.coordinator.deadlines import Instants, Pauses, deadline_of, expires_at
from consumers.coordinator.scheduling.queue import QueueKey, SessionQueue
from topics.types.session import (
    CLAIMED_STAGES,
    WAITING_STAGES,
    Phase,
    Plan,
    SessionState,
    Stage,
    TaskState,
    session_id_of,
)

VOID_FACTOR, VOID_SPARE = 4, 1000
"""Void deadlines are removed when there are more than VOID_FACTOR per session plus VOID_SPARE: rarely, and in bounded memory."""


class Table:
    """All rows of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._tasks: dict[str, TaskState] = {}
        self._sessions: dict[str, SessionState] = {}
        self.queue = SessionQueue()
        self.phases: Counter[Phase] = Counter()
        """Sessions by phase, for people and metrics."""
        self._granted_claims: dict[str, dict[str, str]] = {}
        self.pauses = Pauses()
        self._deadlines = Instants()
        self._run_deadlines = Instants()
        """Deadlines on the run clock."""
        self._expiries = Instants()
        """Tasks by the end of their retention."""

    # --- reading

    def task(self, task_id: str) -> TaskState | None:
        return self._tasks.get(task_id)

    def task_of(self, session: SessionState) -> TaskState:
        return self._tasks[session.task_id]

    def session(self, session_id: str) -> SessionState | None:
        return self._sessions.get(session_id)

    def known_session(self, session_id: str) -> SessionState | None:
        """The session's row; None also while its task isn't known (`batch`)."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.task_id in self._tasks else None

    def sessions(self) -> list[SessionState]:
        return list(self._sessions.values())

    def sessions_of(self, task_id: str) -> list[SessionState]:
        """The task's existing sessions in the order of their sample indexes."""
        task = self._tasks.get(task_id)
        ids = (f"{task_id}.{index}" for index in range(task.num_samples if task else 0))
        return [self._sessions[session_id] for session_id in ids if session_id in self._sessions]

    def next_waiting(self, stage: Stage, pool: str, priority: int, user: str) -> SessionState | None:
        """The session that a slot assigned to this user at this priority serves (`SessionQueue.next`)."""
        waiting = self.queue.next(stage, pool, priority, user)
        return None if waiting is None else self._sessions[session_id_of(*waiting)]

    @property
    def granted_claims(self) -> Mapping[str, Mapping[str, str]]:
        """Session ids by worker id and granted claim id."""
        return self._granted_claims

    def ready(self, pool: str) -> list[SessionState]:
        """The pool's sessions that have a runtime and wait for a run slot."""
        staged = map(self._sessions.__getitem__, self.queue.staged_sessions())
        plans = ((session, self.task_of(session).plan) for session in staged if session.phase is Phase.READY)
        return [session for session, plan in plans if plan is not None and plan.pool == pool]

    @property
    def pending_instants(self) -> int:
        """Number of instants at which time alone may change something, void ones included."""
        return len(self._deadlines) + len(self._run_deadlines) + len(self._expiries)

    def is_due(self, session: SessionState, now: int) -> bool:
        """Whether the session's deadline has passed at clock `now`."""
        deadline = deadline_of(session, self.task_of(session))
        clock = self._run_clock(now) if session.phase is Phase.RUNNING else now
        return deadline is not None and deadline <= clock

    def pop_due(self, now: int) -> list[str]:
        """Remove and return the sessions whose deadline has passed at clock `now`."""
        passed = dict.fromkeys(self._deadlines.pop_passed(now) + self._run_deadlines.pop_passed(self._run_clock(now)))
        # An entry is void if its row has changed since; the changed row has an entry of its own.
        return [name for name in passed if (row := self._sessions.get(name)) is not None and self.is_due(row, now)]

    def pop_expired(self, now: int) -> list[str]:
        """Remove and return the tasks that have expired at clock `now`."""
        return [name for name in self._expiries.pop_passed(now) if self.is_expired(name, now)]

    def is_expired(self, task_id: str, now: int) -> bool:
        """Whether no input can name the task any more at clock `now`."""
        task = self._tasks.get(task_id)
        at = None if task is None else expires_at(task)
        return at is not None and at <= now

    def _run_clock(self, now: int) -> int:
        return now - self.pauses.total_ms(now)

    # --- changing

    def apply(self, decision: Decision) -> None:
        if decision.pauses is not None:
            self.pauses = decision.pauses
        for task in decision.tasks:
            self.load(task)
        for session in decision.sessions:
            self.load(session)
        for key in decision.deleted:
            self.delete(key)

    def load(self, row: TaskState | SessionState) -> None:
        """Insert or replace a row."""
        if isinstance(row, TaskState):
            self._load_task(row)
            return
        old = self._sessions.get(row.session_id)
        self._sessions[row.session_id] = row
        if old is not None:
            self._unindex(old)
        self._index(row)

    def delete(self, key: str) -> None:
        """Delete a row by its table key (`task:<id>` or `session:<id>`)."""
        kind, _, name = key.partition(":")
        if kind == "task":
            self._tasks.pop(name, None)
        elif name in self._sessions:
            self._unindex(self._sessions.pop(name))

    def fill(self, rows: Iterable[TaskState | SessionState]) -> None:
        """Load all rows into an empty table, in any order: a compacted log may hold a session before its task."""
        for row in rows:
            if isinstance(row, TaskState):
                self._load_task(row)
            else:
                self._sessions[row.session_id] = row
        for session in self._sessions.values():
            self._index(session)

    def _load_task(self, task: TaskState) -> None:
        before = self._tasks.get(task.task_id)
        self._tasks[task.task_id] = task
        at = expires_at(task)
        if at is not None and (before is None or expires_at(before) != at):
            self._expiries.add(at, task.task_id)

    def _index(self, session: SessionState) -> None:
        self.phases[session.phase] += 1
        task = self._tasks.get(session.task_id)
        if task is None or task.plan is None:
            return
        stage = WAITING_STAGES.get(session.phase)
        if stage is not None:
            key = _queue_key(task.plan, stage)
            if session.ticket_released_at is None:
                self.queue.add(key, task.task_id, session.sample_index, again=_had_ticket(session))
            else:
                self.queue.activate(key, session.session_id)
        elif session.phase in CLAIMED_STAGES and session.worker_id is not None and session.claim_id is not None:
            self.queue.activate(_queue_key(task.plan, CLAIMED_STAGES[session.phase]), session.session_id)
            self._granted_claims.setdefault(session.worker_id, {})[session.claim_id] = session.session_id
        if _is_staged(session):
            self.queue.stage(task.plan.pool, task.plan.priority, session.session_id)
        deadline = deadline_of(session, task)
        if deadline is not None:
            instants = self._run_deadlines if session.phase is Phase.RUNNING else self._deadlines
            instants.add(deadline, session.session_id)
            if len(instants) > VOID_FACTOR * len(self._sessions) + VOID_SPARE:
                self._drop_void(instants)

    def _drop_void(self, instants: Instants) -> None:
        """Each repeated release of a ticket leaves a deadline days ahead."""
        are_runs = instants is self._run_deadlines
        rows = [
            s for s in self._sessions.values() if (s.phase is Phase.RUNNING) == are_runs and s.task_id in self._tasks
        ]
        deadlines = [(deadline_of(session, self.task_of(session)), session.session_id) for session in rows]
        instants.replace((deadline, name) for deadline, name in deadlines if deadline is not None)

    def _unindex(self, session: SessionState) -> None:
        self.phases[session.phase] -= 1
        task = self._tasks.get(session.task_id)
        if task is None or task.plan is None:
            return
        stage = WAITING_STAGES.get(session.phase)
        if stage is not None and session.ticket_released_at is None:
            self.queue.discard(_queue_key(task.plan, stage), task.task_id, session.sample_index)
        self.queue.deactivate(session.session_id)
        if session.worker_id is not None and session.claim_id is not None:
            claims = self._granted_claims.get(session.worker_id)
            if claims is not None:
                claims.pop(session.claim_id, None)
                if not claims:
                    del self._granted_claims[session.worker_id]
        self.queue.unstage(task.plan.pool, session.session_id)


def _is_staged(session: SessionState) -> bool:
    ticketed = session.phase is Phase.QUEUED and session.ticket_released_at is not None
    return ticketed or session.phase in (Phase.INIT, Phase.READY)


def _queue_key(plan: Plan, stage: Stage) -> QueueKey:
    return QueueKey(stage, plan.pool, plan.priority, plan.user)


def _had_ticket(session: SessionState) -> bool:
    """Whether this waiting session has had a ticket before, so that its siblings may have started."""
    handed_back = session.phase is Phase.QUEUED and session.accounting.init_queued_ms > 0
    return session.attempt > 1 or session.releases > 0 or handed_back
