"""The table of one partition: tasks, sessions, and the indexes over them that deciding needs.

Rows change only through `apply` and `load`. Deadlines are a property of the row (`deadline_of`), never stored beside it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from consumers.coordinator.commands import Decision
from consumers.coordinator.waiting import Place, Waiting
from polar.types.session import Phase, Plan, SessionState, Stage, TaskState, session_id_of
from topics.contract import DAY_MS

TICKET_MS = 10_000
"""A ticket unclaimed for so long is released again (protocol 9)."""
QUEUE_MS = 6 * DAY_MS
"""The retention of `polar.tasks` less a day: then nobody would know the task any more (protocol 10)."""
GRACE_MS = 60_000
"""On top of a budget, which the worker itself keeps: for killing, reporting, and a Kafka that was away for the worker alone."""
CLOSING_MS = 2_000
"""From `CloseKey` to `Build` where the harness isn't known to be dead (protocol 17)."""
BUILDING_MS = 60_000
"""Then `Build` is written again."""
UNOPENED_MS = DAY_MS
"""From a task's first `session open`: samples that nobody has opened by then end, so that the group does (protocol 28)."""
FORGET_MS = 8 * DAY_MS
"""After a group's end: `polar.tasks` has then forgotten the task (protocol 32)."""

VOID_FACTOR, VOID_SPARE = 4, 1000
"""More deadlines than so many for each session, and these, are gone through for void ones."""


@dataclass(frozen=True)
class Step:
    """A waiting phase: for which stage, and where a granted claim leads."""

    stage: Stage
    in_hand: Phase


WAITING: dict[Phase, Step] = {
    Phase.QUEUED: Step(Stage.INIT, Phase.INIT),
    Phase.READY: Step(Stage.RUN, Phase.RUNNING),
    Phase.RAN: Step(Stage.EVALUATE, Phase.EVALUATING),
}
HAND: dict[Phase, Stage] = {step.in_hand: step.stage for step in WAITING.values()}


def is_ticket_stale(session: SessionState, now: int) -> bool:
    """Whether this waiting session's newest ticket has gone unclaimed for too long."""
    return session.lent_at is not None and now >= session.lent_at + TICKET_MS


def deadline_of(session: SessionState, task: TaskState) -> int | None:
    """Clock (ms) at which this row's state must change by itself; None for an ended one."""
    match session.phase:
        case Phase.QUEUED | Phase.READY | Phase.RAN:
            expires = session.since + QUEUE_MS
            return expires if session.lent_at is None else min(expires, session.lent_at + TICKET_MS)
        case Phase.UNOPENED:
            return session.since + UNOPENED_MS
        case Phase.RUNNING if session.ttl_ms is not None:
            return session.since + session.ttl_ms
        case Phase.INIT | Phase.RUNNING | Phase.EVALUATING:
            return session.since + round(budget_s(HAND[session.phase], task) * 1000) + GRACE_MS
        case Phase.CLOSING:
            return session.since + CLOSING_MS
        case Phase.BUILDING:
            return session.since + BUILDING_MS
        case Phase.ENDED:
            return None


def is_due(session: SessionState, task: TaskState, now: int) -> bool:
    """Whether this row's deadline has passed."""
    deadline = deadline_of(session, task)
    return deadline is not None and deadline <= now


def budget_s(stage: Stage, task: TaskState) -> float:
    """The stage's budget in seconds."""
    assert task.plan is not None, "a session's task is known"
    match stage:
        case Stage.INIT:
            return task.plan.init_budget_s
        case Stage.RUN:
            return task.plan.run_budget_s
        case Stage.EVALUATE:
            return task.plan.evaluate_budget_s


class Table:
    """All rows of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._tasks: dict[str, TaskState] = {}
        self._sessions: dict[str, SessionState] = {}
        self.waiting = Waiting()
        self._in_hand: dict[str, dict[str, None]] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._closings: list[tuple[int, str]] = []

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

    def wants(self) -> dict[tuple[Stage, str], int]:
        """How many sessions want a slot, by stage and pool."""
        return {key: self.waiting.sessions(*key).total() for key in self.waiting.queues()}

    def next_waiting(self, stage: Stage, pool: str, priority: int, user: str) -> SessionState | None:
        """The session that a slot lent for this user at this priority goes to (`Waiting.next`)."""
        found = self.waiting.next(stage, pool, priority, user)
        return None if found is None else self._sessions[session_id_of(*found)]

    def in_hand(self) -> dict[str, list[SessionState]]:
        """Sessions under a granted claim, by worker id."""
        return {worker: [self._sessions[s] for s in ids] for worker, ids in self._in_hand.items() if ids}

    def ready(self) -> list[SessionState]:
        return [s for s in map(self._sessions.__getitem__, self.waiting.staged_sessions()) if s.phase is Phase.READY]

    @property
    def awaited(self) -> int:
        """Instants at which time alone may change something, those that their rows' changes have voided included."""
        return len(self._deadlines) + len(self._closings)

    def due(self, now: int) -> list[str]:
        """Takes out the sessions whose deadline has passed at clock `now`."""
        passed: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, session_id = heapq.heappop(self._deadlines)
            session = self._sessions.get(session_id)
            # An entry outlived by its row's changes is void: the row's own deadline has an entry of its own.
            if session is not None and is_due(session, self.task_of(session), now):
                passed.append(session_id)
        return passed

    def forgettable(self, now: int) -> list[str]:
        """Takes out the tasks that may be forgotten at clock `now`."""
        passed: list[str] = []
        while self._closings and self._closings[0][0] + FORGET_MS <= now:
            passed.append(heapq.heappop(self._closings)[1])
        return passed

    # --- changing

    def apply(self, decision: Decision) -> None:
        for task in decision.tasks:
            self.load(task)
        for session in decision.sessions:
            self.load(session)
        for key in decision.forgotten:
            self.forget(key)

    def load(self, row: TaskState | SessionState) -> None:
        """Take a row as it is now."""
        if isinstance(row, TaskState):
            before = self._tasks.get(row.task_id)
            self._tasks[row.task_id] = row
            if row.closed_at is not None and (before is None or before.closed_at is None):
                heapq.heappush(self._closings, (row.closed_at, row.task_id))
            return
        old = self._sessions.get(row.session_id)
        if old is not None:
            self._unindex(old)
        self._sessions[row.session_id] = row
        self._index(row)

    def forget(self, key: str) -> None:
        """Drop a row by its table key (`task:<id>` or `session:<id>`)."""
        kind, _, name = key.partition(":")
        if kind == "task":
            self._tasks.pop(name, None)
        elif name in self._sessions:
            self._unindex(self._sessions.pop(name))

    def index_all(self) -> None:
        """After loading rows in any order (a compacted log may hold a session before its task)."""
        self.waiting = Waiting()
        for session in self._sessions.values():
            self._unindex(session)
            self._index(session)

    def _index(self, session: SessionState) -> None:
        task = self._tasks.get(session.task_id)
        if task is None or task.plan is None:
            return
        waits_for = WAITING.get(session.phase)
        if waits_for is not None:
            place = _place(task.plan, waits_for.stage)
            if session.lent_at is None:
                self.waiting.add(place, task.task_id, session.sample_index, again=_had_ticket(session))
            else:
                self.waiting.take(place, session.session_id)
        elif session.phase in HAND and session.worker_id is not None:
            self.waiting.take(_place(task.plan, HAND[session.phase]), session.session_id)
            self._in_hand.setdefault(session.worker_id, {})[session.session_id] = None
        if _is_staged(session):
            self.waiting.stage(task.plan.pool, task.plan.priority, session.session_id)
        deadline = deadline_of(session, task)
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, session.session_id))
            if len(self._deadlines) > VOID_FACTOR * len(self._sessions) + VOID_SPARE:
                self._drop_void()

    def _drop_void(self) -> None:
        """A ticket that is released again and again leaves a deadline days ahead each time."""
        rows = [(session, self._tasks.get(session.task_id)) for session in self._sessions.values()]
        found = [(deadline_of(s, task), s.session_id) for s, task in rows if task is not None and task.plan is not None]
        self._deadlines = [(deadline, session_id) for deadline, session_id in found if deadline is not None]
        heapq.heapify(self._deadlines)

    def _unindex(self, session: SessionState) -> None:
        task = self._tasks.get(session.task_id)
        if task is None or task.plan is None:
            return
        waits_for = WAITING.get(session.phase)
        if waits_for is not None and session.lent_at is None:
            self.waiting.discard(_place(task.plan, waits_for.stage), task.task_id, session.sample_index)
        self.waiting.let_go(session.session_id)
        if session.worker_id is not None:
            holding = self._in_hand.get(session.worker_id)
            if holding is not None:
                holding.pop(session.session_id, None)
                if not holding:
                    del self._in_hand[session.worker_id]
        self.waiting.unstage(task.plan.pool, session.session_id)


def _is_staged(session: SessionState) -> bool:
    ticketed = session.phase is Phase.QUEUED and session.lent_at is not None
    return ticketed or session.phase in (Phase.INIT, Phase.READY)


def _place(plan: Plan, stage: Stage) -> Place:
    return Place(stage, plan.pool, plan.priority, plan.user)


def _had_ticket(session: SessionState) -> bool:
    """Whether this waiting session has been on its way before: its siblings, too, have perhaps begun."""
    handed_back = session.phase is Phase.QUEUED and session.accounting.init_queued_ms > 0
    return session.attempt > 1 or session.releases > 0 or handed_back
