"""The table of one partition: tasks, sessions, and the indexes over them that deciding needs.

Rows change only through `apply` and `load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from consumers.coordinator.commands import Decision
from consumers.coordinator.deadlines import Instants, Pauses, deadline_of, expires_at
from consumers.coordinator.phases import HAND, WAITING
from consumers.coordinator.scheduling.queue import QueueKey, SessionQueue
from topics.types.session import Phase, Plan, SessionState, Stage, TaskState, session_id_of

VOID_FACTOR, VOID_SPARE = 4, 1000
"""More deadlines than so many for each session, and these, are gone through for void ones."""


class Table:
    """All rows of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._tasks: dict[str, TaskState] = {}
        self._sessions: dict[str, SessionState] = {}
        self.queue = SessionQueue()
        self.phases: Counter[Phase] = Counter()
        """Sessions by phase: for people and metrics."""
        self._granted_claims: dict[str, dict[str, str]] = {}
        self.pauses = Pauses()
        self._deadlines = Instants()
        self._run_deadlines = Instants()
        """On the run clock."""
        self._expiries = Instants()
        """Tasks, by the end of their retention."""

    # --- reading

    def task(self, task_id: str) -> TaskState | None:
        return self._tasks.get(task_id)

    def task_of(self, session: SessionState) -> TaskState:
        return self._tasks[session.task_id]

    def session(self, session_id: str) -> SessionState | None:
        return self._sessions.get(session_id)

    def sessions(self) -> list[SessionState]:
        return list(self._sessions.values())

    def sessions_of(self, task_id: str) -> list[SessionState]:
        """A task's sessions that exist, by sample index."""
        task = self._tasks.get(task_id)
        ids = (f"{task_id}.{index}" for index in range(task.num_samples if task else 0))
        return [self._sessions[session_id] for session_id in ids if session_id in self._sessions]

    def next_waiting(self, stage: Stage, pool: str, priority: int, user: str) -> SessionState | None:
        """The session that a slot lent for this user at this priority goes to (`SessionQueue.next`)."""
        found = self.queue.next(stage, pool, priority, user)
        return None if found is None else self._sessions[session_id_of(*found)]

    @property
    def granted_claims(self) -> Mapping[str, Mapping[str, str]]:
        """Granted claims by worker id: each with its session's id."""
        return self._granted_claims

    def ready(self, pool: str) -> list[SessionState]:
        """A pool's sessions that wait for a run slot, beside their runtimes."""
        staged = map(self._sessions.__getitem__, self.queue.staged_sessions())
        plans = ((session, self.task_of(session).plan) for session in staged if session.phase is Phase.READY)
        return [session for session, plan in plans if plan is not None and plan.pool == pool]

    @property
    def awaited(self) -> int:
        """Instants at which time alone may change something, those that their rows' changes have voided included."""
        return len(self._deadlines) + len(self._run_deadlines) + len(self._expiries)

    def is_due(self, session: SessionState, now: int) -> bool:
        """Whether this row's deadline has passed at clock `now`."""
        deadline = deadline_of(session, self.task_of(session))
        clock = self._run_clock(now) if session.phase is Phase.RUNNING else now
        return deadline is not None and deadline <= clock

    def due(self, now: int) -> list[str]:
        """Takes out the sessions whose deadline has passed at clock `now`."""
        passed = dict.fromkeys(self._deadlines.passed(now) + self._run_deadlines.passed(self._run_clock(now)))
        # An entry outlived by its row's changes is void: the row's own deadline has an entry of its own.
        return [name for name in passed if (row := self._sessions.get(name)) is not None and self.is_due(row, now)]

    def expired(self, now: int) -> list[str]:
        """Takes out the tasks that may be forgotten at clock `now`."""
        return [name for name in self._expiries.passed(now) if self.is_expired(name, now)]

    def is_expired(self, task_id: str, now: int) -> bool:
        """Whether nothing can ask for this task any more at clock `now`."""
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
        for key in decision.forgotten:
            self.forget(key)

    def load(self, row: TaskState | SessionState) -> None:
        """Take a row as it is now."""
        if isinstance(row, TaskState):
            self._load_task(row)
            return
        old = self._sessions.get(row.session_id)
        self._sessions[row.session_id] = row
        if old is not None:
            self._unindex(old)
        self._index(row)

    def forget(self, key: str) -> None:
        """Drop a row by its table key (`task:<id>` or `session:<id>`)."""
        kind, _, name = key.partition(":")
        if kind == "task":
            self._tasks.pop(name, None)
        elif name in self._sessions:
            self._unindex(self._sessions.pop(name))

    def fill(self, rows: Iterable[TaskState | SessionState]) -> None:
        """All rows at once, in any order, into an empty table: a compacted log may hold a session before its task."""
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
        waits_for = WAITING.get(session.phase)
        if waits_for is not None:
            place = _place(task.plan, waits_for.stage)
            if session.ticket_released_at is None:
                self.queue.add(place, task.task_id, session.sample_index, again=_had_ticket(session))
            else:
                self.queue.activate(place, session.session_id)
        elif session.phase in HAND and session.worker_id is not None and session.claim_id is not None:
            self.queue.activate(_place(task.plan, HAND[session.phase]), session.session_id)
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
        """A ticket that is released again and again leaves a deadline days ahead each time."""
        of_runs = instants is self._run_deadlines
        rows = [
            s for s in self._sessions.values() if (s.phase is Phase.RUNNING) == of_runs and s.task_id in self._tasks
        ]
        found = [(deadline_of(session, self.task_of(session)), session.session_id) for session in rows]
        instants.replace((deadline, name) for deadline, name in found if deadline is not None)

    def _unindex(self, session: SessionState) -> None:
        self.phases[session.phase] -= 1
        task = self._tasks.get(session.task_id)
        if task is None or task.plan is None:
            return
        waits_for = WAITING.get(session.phase)
        if waits_for is not None and session.ticket_released_at is None:
            self.queue.discard(_place(task.plan, waits_for.stage), task.task_id, session.sample_index)
        self.queue.deactivate(session.session_id)
        if session.worker_id is not None and session.claim_id is not None:
            holding = self._granted_claims.get(session.worker_id)
            if holding is not None:
                holding.pop(session.claim_id, None)
                if not holding:
                    del self._granted_claims[session.worker_id]
        self.queue.unstage(task.plan.pool, session.session_id)


def _is_staged(session: SessionState) -> bool:
    ticketed = session.phase is Phase.QUEUED and session.ticket_released_at is not None
    return ticketed or session.phase in (Phase.INIT, Phase.READY)


def _place(plan: Plan, stage: Stage) -> QueueKey:
    return QueueKey(stage, plan.pool, plan.priority, plan.user)


def _had_ticket(session: SessionState) -> bool:
    """Whether this waiting session has been on its way before: its siblings, too, have perhaps begun."""
    handed_back = session.phase is Phase.QUEUED and session.accounting.init_queued_ms > 0
    return session.attempt > 1 or session.releases > 0 or handed_back
