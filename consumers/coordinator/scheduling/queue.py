"""Who waits for a slot, in which order: an index of one partition's sessions, by stage and pool, priority, user and task.

Within a user tasks take turns of 16 sessions (deficit round robin, Shreedhar & Varghese 1995, each session costing 1): siblings start
together, and a task of 1024 keeps the next one waiting for 16. A task's waiting sessions are the set bits of an integer and leave
lowest first, so one that comes back is near the front of its task. Which user is next isn't decided here: `lend` sees all partitions.
Beside those that wait the index counts what `lend` weighs: sessions in hand by user and by priority, and staged ones by priority.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from topics.types.session import Stage

TURN = 16
"""Sessions of a task's turn: a usual GRPO group."""

K = TypeVar("K")


class Place(NamedTuple):
    """Where a session waits, or is in hand."""

    stage: Stage
    pool: str
    priority: int
    user: str


class Tasks:
    """The waiting tasks of one user, in the order of their turns."""

    __slots__ = ("left", "samples", "sessions", "turn")

    def __init__(self) -> None:
        self.samples: OrderedDict[str, int] = OrderedDict()
        """By task id: bit n is set where sample n waits. The first is next. An OrderedDict, since a dict is slow at its own front."""
        self.sessions = 0
        self.turn = ""
        """The task that was served last."""
        self.left = 0
        """What is left of its turn."""

    def add(self, task_id: str, index: int, *, again: bool) -> None:
        waits = self.samples.get(task_id)
        self.samples[task_id] = (waits or 0) | 1 << index
        self.sessions += 1
        if waits is None and (again or (task_id == self.turn and self.left)):
            self.samples.move_to_end(task_id, last=False)
            if self.left and self.turn in self.samples:
                self.samples.move_to_end(self.turn, last=False)

    def discard(self, task_id: str, index: int) -> bool:
        waits = self.samples.get(task_id, 0)
        if not waits >> index & 1:
            return False
        self.sessions -= 1
        is_next = next(iter(self.samples)) == task_id
        if is_next:
            # It leaves because it was served; a cancelled one costs its task no more than its place in the turn.
            self.left = (self.left if self.turn == task_id and self.left else TURN) - 1
            self.turn = task_id
        left = waits ^ 1 << index
        if not left:
            del self.samples[task_id]
        else:
            self.samples[task_id] = left
            if is_next and not self.left:
                self.samples.move_to_end(task_id)
        return True

    def next(self) -> tuple[str, int]:
        task_id, waits = next(iter(self.samples.items()))
        return task_id, (waits & -waits).bit_length() - 1


class _Queue:
    """One stage and pool."""

    __slots__ = ("held", "in_hand", "users", "waiting")

    def __init__(self) -> None:
        self.users: dict[int, dict[str, Tasks]] = {}
        """Who waits, by priority."""
        self.waiting: Counter[int] = Counter()
        """Sessions that wait, by priority."""
        self.held: Counter[int] = Counter()
        """Sessions with a ticket or a claim, by priority."""
        self.in_hand: Counter[str] = Counter()
        """The same by user."""


class Waiting:
    """All operations take constant time in the number of sessions, tasks and users; those that list take as long as what they list."""

    def __init__(self) -> None:
        self._queues: dict[tuple[Stage, str], _Queue] = {}
        self._held: dict[str, Place] = {}
        """By session id. As many as there are slots."""
        self._staged: dict[str, dict[str, int]] = {}
        """By pool and session id: the priority. As many as `ready_limit` lets."""

    # --- reading

    def next(self, stage: Stage, pool: str, priority: int, user: str) -> tuple[str, int] | None:
        """Task and sample index of the session that a slot lent for `user` at `priority` goes to.

        A higher priority that has come meanwhile goes first; another user of the same where that one's sessions are gone. None where
        only lower ones wait: the slot may be wanted elsewhere.
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

    def queues(self) -> list[tuple[Stage, str]]:
        """Stages and pools for which a session waits."""
        return [key for key, queue in self._queues.items() if queue.users]

    def sessions(self, stage: Stage, pool: str) -> Counter[int]:
        """How many sessions wait, by priority."""
        queue = self._queues.get((stage, pool))
        return Counter() if queue is None else queue.waiting

    def users(self, stage: Stage, pool: str, priority: int) -> Mapping[str, Tasks]:
        """Whose sessions wait at this priority, and what of each."""
        queue = self._queues.get((stage, pool))
        return {} if queue is None else queue.users.get(priority, {})

    def in_hand(self, stage: Stage, pool: str) -> Counter[str]:
        """Sessions with a ticket or a claim, by user."""
        queue = self._queues.get((stage, pool))
        return Counter() if queue is None else queue.in_hand

    def held(self, stage: Stage, pool: str) -> Counter[int]:
        """The same by priority."""
        queue = self._queues.get((stage, pool))
        return Counter() if queue is None else queue.held

    def staged(self, pool: str) -> Counter[int]:
        """Sessions between an INIT ticket and a run claim, by priority: what `ready_limit` bounds."""
        return Counter(self._staged.get(pool, {}).values())

    def pools_staged(self) -> list[str]:
        """Pools of which a session is staged."""
        return [pool for pool, staged in self._staged.items() if staged]

    def staged_sessions(self) -> list[str]:
        """All of them, by id."""
        return [session_id for staged in self._staged.values() for session_id in staged]

    def known(self) -> list[tuple[Stage, str]]:
        """Stages and pools of which a session waits or is in hand."""
        return list(self._queues)

    # --- changing

    def add(self, place: Place, task_id: str, index: int, *, again: bool = False) -> None:
        """A session wants a slot; `again`: it had a ticket before, and its task goes before those that haven't begun."""
        queue = self._queue(place)
        tasks = queue.users.setdefault(place.priority, {}).get(place.user)
        if tasks is None:
            tasks = queue.users[place.priority][place.user] = Tasks()
        tasks.add(task_id, index, again=again)
        queue.waiting[place.priority] += 1

    def discard(self, place: Place, task_id: str, index: int) -> None:
        """It no longer does; nothing where it didn't."""
        queue = self._queues.get((place.stage, place.pool))
        tasks = queue and queue.users.get(place.priority, {}).get(place.user)
        if queue is None or not tasks or not tasks.discard(task_id, index):
            return
        _less(queue.waiting, place.priority)
        if not tasks.sessions:
            del queue.users[place.priority][place.user]
            if not queue.users[place.priority]:
                del queue.users[place.priority]
        self._drop_empty(place, queue)

    def take(self, place: Place, session_id: str) -> None:
        """A ticket for it is out, or its claim granted."""
        self.let_go(session_id)
        queue = self._queue(place)
        queue.held[place.priority] += 1
        queue.in_hand[place.user] += 1
        self._held[session_id] = place

    def let_go(self, session_id: str) -> None:
        """The end of what `take` began; nothing where nothing was."""
        place = self._held.pop(session_id, None)
        if place is not None:
            queue = self._queue(place)
            _less(queue.held, place.priority)
            _less(queue.in_hand, place.user)
            self._drop_empty(place, queue)

    def stage(self, pool: str, priority: int, session_id: str) -> None:
        """It is between its INIT ticket and its run claim."""
        self._staged.setdefault(pool, {})[session_id] = priority

    def unstage(self, pool: str, session_id: str) -> None:
        """It no longer is; nothing where it wasn't."""
        self._staged.get(pool, {}).pop(session_id, None)

    def _queue(self, place: Place) -> _Queue:
        key = place.stage, place.pool
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
        return queue

    def _drop_empty(self, place: Place, queue: _Queue) -> None:
        if not queue.users and not queue.held:
            del self._queues[place.stage, place.pool]


def _less(counts: Counter[K], key: K) -> None:
    """Zeros aren't kept: there is no end to users."""
    if counts[key] == 1:
        del counts[key]
    else:
        counts[key] -= 1
