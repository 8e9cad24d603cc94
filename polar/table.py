"""`SessionTable`: what the coordinator decided on tasks and their sessions, as a live copy of its rows.

The rows are committed rows of `polar.sessions`. Refused tasks have none: they are read from `polar.dead-letters`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Self

from topics import dead_letters, events, sessions, tasks
from topics.contract.topic import Topic
from topics.dead_letters import Letter
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Phase, SessionState, TaskState, task_id_of
from topics.types.task import body_hash
from topics.waiting.first_done import first_done

TABLE_S = 300.0
"""Deadline for reading the whole table: a million sessions take about a minute."""


@dataclass(frozen=True)
class Refusal:
    """A submitted task that became a dead letter instead of sessions."""

    task_id: str
    letter_id: int
    """`polar dead-letters show` prints it."""
    process: str
    """Who refused it."""
    field: str
    """The invalid field; empty if none is to blame."""
    reason: str

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{self.task_id}: {self.process} refused it: {field}{self.reason}"


class TaskRefusedError(InputError):
    """Tasks were submitted and refused; the other tasks of the submission go on."""

    def __init__(self, refusals: Sequence[Refusal], unanswered: Sequence[str] = ()) -> None:
        """`unanswered`: other ids that no coordinator has shown yet."""
        first = refusals[0]
        super().__init__(first.field or "task_id", first.task_id, first.reason)
        self.args = ("; ".join(map(str, refusals)),)
        self.refusals = list(refusals)
        self.unanswered = list(unanswered)


class SessionTable:
    """A live copy of the coordinator's rows for some tasks, or for all. Inside `async with` it is complete and follows every change."""

    def __init__(
        self, settings: Settings, task_ids: Collection[str] | None = None, *, with_refusals: bool = False
    ) -> None:
        """`with_refusals`: also read which tasks that `expect` names are refused."""
        self.tasks: dict[str, TaskState] = {}
        self.sessions: dict[str, dict[int, SessionState]] = {}
        """By task id and sample index."""
        self.refusals: dict[str, Refusal] = {}
        """By task id."""
        self.on_change: Callable[[str], None] | None = None
        """Called with the task's id after a row of it was written or deleted."""
        self._expected: dict[str, str] = {}
        """Body hashes of submitted tasks that are neither shown nor refused, by task id."""
        self._built_ms: dict[str, int] = {}
        """Unix ms, by task id: when the oldest row was written that shows a session of the task as being built, or ended."""
        self._changed_ms: dict[str, int] = {}
        """Unix ms, by task id: when the newest row of the task or of one of its sessions was written."""
        self._ended: Counter[str] = Counter()
        """Number of ended sessions by task id, so that `is_finished` is cheap: it is called at every change, for thousands of sessions."""
        self._settings = settings
        self._task_ids = task_ids
        self._changed = asyncio.Event()
        self._follower = Follower(
            settings,
            sessions.TOPIC,
            self._on_row,
            since=Since.BEGINNING,
            on_tombstone=self._on_tombstone,
            committed=True,
        )
        self._letters = (
            Follower(settings, dead_letters.TOPIC, self._on_letter, since=Since.END) if with_refusals else None
        )

    async def __aenter__(self) -> Self:
        await require_topic(self._settings, sessions.TOPIC)
        try:
            if self._letters is not None:
                await self._letters.start()
            await self._follower.start(TABLE_S)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as ends:  # all are stopped, even if this is cancelled
            for follower in self._followers:
                ends.push_async_callback(follower.stop)

    @property
    def _followers(self) -> list[Follower]:
        return [self._follower] if self._letters is None else [self._follower, self._letters]

    @property
    def has_failed(self) -> bool:
        """Whether reading has ended for good, so that the table changes no longer."""
        return any(follower.failed.done() for follower in self._followers)

    async def caught_up(self) -> None:
        """Return once all rows and refusals that are on the log now are here. Raises NotReadyError, and what ended the reading."""
        try:
            for follower in self._followers:
                await follower.caught_up(TABLE_S)
        except TimeoutError:
            raise NotReadyError(f"Kafka at {self._settings.bootstrap} doesn't answer") from None

    def expect(self, hashes: Mapping[str, str]) -> None:
        """Look out for refusals of these tasks (body hash by id); call it before they are sent."""
        for task_id, expected in hashes.items():
            self.refusals.pop(task_id, None)
            if self.shown_hash(task_id) != expected:
                self._expected[task_id] = expected

    def ended(self, task_id: str) -> list[SessionState]:
        """The task's sessions whose trajectory has been written."""
        return [row for row in self.sessions.get(task_id, {}).values() if row.phase is Phase.ENDED]

    def shown_hash(self, task_id: str) -> str | None:
        """The hash of the task's body; None: no coordinator shows a task with this id."""
        task = self.tasks.get(task_id)
        return None if task is None else task.body_hash

    def is_finished(self, task_id: str) -> bool:
        """Whether every session of the task has its trajectory."""
        return self.shown_hash(task_id) is not None and self._ended[task_id] == self.tasks[task_id].num_samples

    def ended_count(self, task_id: str) -> int:
        """Number of the task's sessions whose trajectory has been written."""
        return self._ended[task_id]

    def is_over(self, task_id: str) -> bool:
        """Whether the task is finished, or was refused and never will be."""
        return task_id in self.refusals or self.is_finished(task_id)

    def built_ms(self, task_id: str) -> int | None:
        """Unix ms: when the first trajectory of the task may have been written, later by the delay of its row; None: there is none yet."""
        return self._built_ms.get(task_id)

    def changed_ms(self, task_id: str) -> int:
        """Unix ms: when the newest row of the task or of one of its sessions was written; 0 if there is none.

        The rows' own times are of the coordinator's clock, which counts from the beginning of the log.
        """
        return self._changed_ms.get(task_id, 0)

    async def until(self, holds: Callable[[], bool], deadline_s: float | None) -> bool:
        """Wait until `holds()`, called after each change. False if the deadline passes. Raises the error that ended the reading."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not holds():
                    self._changed.clear()
                    await first_done(self._changed, *(follower.failed for follower in self._followers))
        return holds()

    def _on_row(self, row: sessions.Row, record: Record) -> None:
        match row:
            case TaskState() if self._is_wanted(row.task_id):
                self.tasks[row.task_id] = row
                # A row with another body may belong to the task that was preferred to ours, which is refused later.
                if row.task_id in self._expected and self._expected[row.task_id] == row.body_hash:
                    del self._expected[row.task_id]
            case SessionState() if self._is_wanted(row.task_id):
                rows = self.sessions.setdefault(row.task_id, {})
                self._ended[row.task_id] += _has_ended(row) - _has_ended(rows.get(row.sample_index))
                rows[row.sample_index] = row
                if row.phase in (Phase.BUILDING, Phase.ENDED):
                    built_ms = self._built_ms.get(row.task_id, record.timestamp)
                    self._built_ms[row.task_id] = min(built_ms, record.timestamp)
            case _:
                return
        self._changed_ms[row.task_id] = max(self.changed_ms(row.task_id), record.timestamp)
        self._notify(row.task_id)

    def _on_letter(self, _: bytes, record: Record) -> None:
        letter = dead_letters.parse(record)
        if not isinstance(letter, Letter):
            return
        task_id = (letter.key or b"").decode(errors="replace")
        # Another task of the same id may be the one that was refused.
        if task_id in self._expected and _refused_hash(letter) == self._expected[task_id]:
            del self._expected[task_id]
            self.refusals[task_id] = Refusal(task_id, letter.id, letter.process, letter.field, letter.reason)
            self._changed.set()

    def _notify(self, task_id: str) -> None:
        if self.on_change is not None:
            self.on_change(task_id)
        self._changed.set()

    def _is_wanted(self, task_id: str) -> bool:
        return self._task_ids is None or task_id in self._task_ids

    def _on_tombstone(self, record: Record) -> None:
        kind, _, name = (record.key or b"").decode(errors="replace").partition(":")
        if kind == "task":
            self.tasks.pop(name, None)
            self._built_ms.pop(name, None)
            self._changed_ms.pop(name, None)
            if not self.sessions.get(name):  # those that expire with it were deleted before it
                self.sessions.pop(name, None)
                del self._ended[name]
            self._notify(name)
        elif kind == "session":
            task_id = task_id_of(name)
            row = self.sessions.get(task_id, {}).pop(int(name.rpartition(".")[2]), None)
            self._ended[task_id] -= _has_ended(row)
            self._notify(task_id)


def _refused_hash(letter: Letter) -> str | None:
    """Body hash of the task that a letter refuses, as a request or as the fact that fanout made of it; None if it refuses none."""
    if letter.topic.endswith(f".{tasks.TOPIC.name}"):
        return body_hash(letter.value)
    fact = events.CODEC.known(letter.value) if letter.topic.endswith(f".{events.TOPIC.name}") else None
    return fact.body_hash if isinstance(fact, events.TaskSubmitted) else None


def _has_ended(row: SessionState | None) -> bool:
    return row is not None and row.phase is Phase.ENDED


async def require_topic(settings: Settings, topic: Topic) -> None:
    """Raise NotReadyError at once if no Kafka answers or the topic doesn't exist: a later read would wait for either."""
    await admin.partition_count(settings, topic.full_name(settings.namespace), reach_s=0)
