"""One partition's waiting sessions in the order in which they are served, by stage and pool, priority, user and task.

Within a user, tasks take turns of 16 sessions (deficit round robin, Shreedhar & Varghese 1995, each session costing 1). Siblings therefore
start together, and a task of 1024 sessions delays the next task by 16. A task's waiting sessions are the set bits of an integer and are
served lowest first, so a session that returns is near the front of its task. Which user is next is decided by `assign`, which sees all
partitions; for it this index also counts active sessions by user and by priority, and staged sessions by priority.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from consumers.coordinator.scheduling.assignment import StagePool
from topics.types.session import Stage

TURN = 16
"""Sessions in a task's turn: a usual GRPO group."""

K = TypeVar("K")


class QueueKey(NamedTuple):
    """Where a session waits or is active."""

    stage: Stage
    pool: str
    priority: int
    user: str


class UserTasks:
    """The waiting tasks of one user, in the order of their turns."""

    __slots__ = ("current", "remaining", "samples", "sessions")

    def __init__(self) -> None:
        self.samples: OrderedDict[str, int] = OrderedDict()
        """By task id: bit n is set while sample n waits. The first task is next. A plain dict is slow at its front."""
        self.sessions = 0
        self.current = ""
        """The task that was served last."""
        self.remaining = 0
        """Sessions remaining in the current task's turn."""

    def add(self, task_id: str, index: int, *, again: bool) -> None:
        waiting = self.samples.get(task_id)
        self.samples[task_id] = (waiting or 0) | 1 << index
        self.sessions += 1
        if waiting is None and (again or (task_id == self.current and self.remaining)):
            self.samples.move_to_end(task_id, last=False)
            if self.remaining and self.current in self.samples:
                self.samples.move_to_end(self.current, last=False)

    def discard(self, task_id: str, index: int) -> bool:
        waiting = self.samples.get(task_id, 0)
        if not waiting >> index & 1:
            return False
        self.sessions -= 1
        is_next = next(iter(self.samples)) == task_id
        if is_next:
            # It leaves because it was served; a cancelled session costs its task no more than one place in the turn.
            self.remaining = (self.remaining if self.current == task_id and self.remaining else TURN) - 1
            self.current = task_id
        waiting ^= 1 << index
        if not waiting:
            del self.samples[task_id]
        else:
            self.samples[task_id] = waiting
            if is_next and not self.remaining:
                self.samples.move_to_end(task_id)
        return True

    def next(self) -> tuple[str, int]:
        task_id, waiting = next(iter(self.samples.items()))
        return task_id, (waiting & -waiting).bit_length() - 1


class _Queue:
    """One stage and pool."""

    __slots__ = ("active_by_priority", "active_by_user", "users", "waiting")

    def __init__(self) -> None:
        self.users: dict[int, dict[str, UserTasks]] = {}
        """Waiting tasks by priority and user."""
        self.waiting: Counter[int] = Counter()
        """Waiting sessions by priority."""
        self.active_by_priority: Counter[int] = Counter()
        self.active_by_user: Counter[str] = Counter()


class SessionQueue:
    """Each operation takes constant time in the number of sessions, tasks and users; a listing takes time proportional to its length."""

    def __init__(self) -> None:
        self._queues: dict[StagePool, _Queue] = {}
        self._active: dict[str, QueueKey] = {}
        """By session id; at most as many as there are slots."""
        self._staged: dict[str, dict[str, int]] = {}
        """By pool and session id: the priority; at most as many as `ready_limit` allows."""

    # --- reading

    def next(self, stage: Stage, pool: str, priority: int, user: str) -> tuple[str, int] | None:
        """Task and sample index of the session that a slot assigned to `user` at `priority` serves.

        A higher priority that has come meanwhile is served first. If the user's sessions are gone, another user of that priority is served.
        None if only lower priorities wait: another partition may need the slot.
        """
        queue = self._queues.get((stage, pool))
        if queue is None or not queue.users:
            return None
        highest = max(queue.users)
        if highest < priority:
            return None
        users = queue.users[highest]
        tasks = users.get(user) or next(iter(users.values()))
        return tasks.next()

    def stage_pools(self) -> list[StagePool]:
        """Stages and pools with waiting or active sessions."""
        return list(self._queues)

    def waiting(self, stage: Stage, pool: str) -> Counter[int]:
        """Waiting sessions by priority."""
        queue = self._queues.get((stage, pool))
        return Counter() if queue is None else queue.waiting

    def users(self, stage: Stage, pool: str, priority: int) -> Mapping[str, UserTasks]:
        """The waiting tasks of each user at this priority."""
        queue = self._queues.get((stage, pool))
        return {} if queue is None else queue.users.get(priority, {})

    def active_by_user(self, stage: Stage, pool: str) -> Counter[str]:
        queue = self._queues.get((stage, pool))
        return Counter() if queue is None else queue.active_by_user

    def active_by_priority(self, stage: Stage, pool: str) -> Counter[int]:
        queue = self._queues.get((stage, pool))
        return Counter() if queue is None else queue.active_by_priority

    def staged(self, pool: str) -> Counter[int]:
        """Staged sessions by priority: what `ready_limit` limits."""
        return Counter(self._staged.get(pool, {}).values())

    def staged_pools(self) -> list[str]:
        """Pools with staged sessions."""
        return [pool for pool, staged in self._staged.items() if staged]

    def staged_sessions(self) -> list[str]:
        """The ids of all staged sessions."""
        return [session_id for staged in self._staged.values() for session_id in staged]

    # --- changing

    def add(self, key: QueueKey, task_id: str, index: int, *, again: bool = False) -> None:
        """A session waits for a slot. `again`: it had a ticket before, so its task is served before tasks that haven't started."""
        queue = self._queue(key)
        tasks = queue.users.setdefault(key.priority, {}).get(key.user)
        if tasks is None:
            tasks = queue.users[key.priority][key.user] = UserTasks()
        tasks.add(task_id, index, again=again)
        queue.waiting[key.priority] += 1

    def discard(self, key: QueueKey, task_id: str, index: int) -> None:
        """A session waits no longer; does nothing if it didn't wait."""
        queue = self._queues.get((key.stage, key.pool))
        tasks = queue and queue.users.get(key.priority, {}).get(key.user)
        if queue is None or not tasks or not tasks.discard(task_id, index):
            return
        _decrement(queue.waiting, key.priority)
        if not tasks.sessions:
            del queue.users[key.priority][key.user]
            if not queue.users[key.priority]:
                del queue.users[key.priority]
        self._drop_empty(key, queue)

    def activate(self, key: QueueKey, session_id: str) -> None:
        """The session's ticket is released, or its claim granted."""
        self.deactivate(session_id)
        queue = self._queue(key)
        queue.active_by_priority[key.priority] += 1
        queue.active_by_user[key.user] += 1
        self._active[session_id] = key

    def deactivate(self, session_id: str) -> None:
        """The session has neither ticket nor claim; does nothing if it wasn't active."""
        key = self._active.pop(session_id, None)
        if key is not None:
            queue = self._queue(key)
            _decrement(queue.active_by_priority, key.priority)
            _decrement(queue.active_by_user, key.user)
            self._drop_empty(key, queue)

    def stage(self, pool: str, priority: int, session_id: str) -> None:
        self._staged.setdefault(pool, {})[session_id] = priority

    def unstage(self, pool: str, session_id: str) -> None:
        """Does nothing if the session wasn't staged."""
        self._staged.get(pool, {}).pop(session_id, None)

    def _queue(self, key: QueueKey) -> _Queue:
        stage_pool = key.stage, key.pool
        if stage_pool not in self._queues:
            self._queues[stage_pool] = _Queue()
        return self._queues[stage_pool]

    def _drop_empty(self, key: QueueKey, queue: _Queue) -> None:
        if not queue.users and not queue.active_by_priority:
            del self._queues[key.stage, key.pool]


def _decrement(counts: Counter[K], key: K) -> None:
    """Zeros aren't kept: new users keep coming."""
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
