"""For programs that produce tasks: submit, follow the coordinator's table, cancel.

Writes `polar.tasks` and `CancelRequested`; what becomes of them is read from `polar.sessions`, committed rows only. Trajectories are
the trainer's to read (`polar.trainer`); nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from topics import events, sessions, tasks
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.log.producer import LogProducer, Unacknowledged
from topics.types.errors import InputError, NotReady
from topics.types.session import Phase, SessionState, TaskState, task_id_of
from topics.types.task import TaskRequest, body_hash
from topics.waiting.first_done import first_done

BODY_LIMIT = tasks.TOPIC.max_bytes - 64 * 1024
"""Bytes of a canonical body; the rest is room for its batch and headers."""
ANSWER_S = 10.0
"""How long `submit` waits for a coordinator to show its tasks."""
SEND_S = 30.0
TABLE_S = 300.0
"""To read the whole table: a million sessions take about a minute."""
ASK_S = 15.0
"""How often someone who waits makes sure that Kafka is there at all."""
GONE_S = 120.0
AT_ONCE = 100
"""Tasks sent before their acknowledgements are awaited."""


class SessionTable:
    """A live copy of the coordinator's table, of the given tasks or of all; inside `async with` it is complete and kept so."""

    def __init__(self, settings: Settings, task_ids: Collection[str] | None = None) -> None:
        self.tasks: dict[str, TaskState] = {}
        self.sessions: dict[str, dict[int, SessionState]] = {}
        """By task id and sample index."""
        self._ended: Counter[str] = Counter()
        """By task id: its sessions whose trajectory is out."""
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

    async def __aenter__(self) -> Self:
        await require(self._settings, sessions.TOPIC)
        await self._follower.start(TABLE_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._follower.stop()

    def ended(self, task_id: str) -> list[SessionState]:
        """The task's sessions whose trajectory is out."""
        return [row for row in self.sessions.get(task_id, {}).values() if row.phase is Phase.ENDED]

    def is_finished(self, task_id: str) -> bool:
        """Whether every session of the task has its trajectory."""
        task = self.tasks.get(task_id)
        # Counted, not looked for: this is asked at every change, of thousands of sessions.
        return task is not None and task.body_hash is not None and self._ended[task_id] == task.num_samples

    async def until(self, holds: Callable[[], bool], deadline_s: float | None) -> bool:
        """Wait until `holds()`, asked after each change; False when the deadline passes. Raises what ended the reading."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not holds():
                    self._changed.clear()
                    await first_done(self._changed, self._follower.failed)
        return holds()

    def _on_row(self, row: sessions.Row, _: Record) -> None:
        match row:
            case TaskState() if self._is_wanted(row.task_id):
                self.tasks[row.task_id] = row
            case SessionState() if self._is_wanted(row.task_id):
                rows = self.sessions.setdefault(row.task_id, {})
                self._ended[row.task_id] += _has_ended(row) - _has_ended(rows.get(row.sample_index))
                rows[row.sample_index] = row
        self._changed.set()

    def _is_wanted(self, task_id: str) -> bool:
        return self._task_ids is None or task_id in self._task_ids

    def _on_tombstone(self, record: Record) -> None:
        kind, _, name = (record.key or b"").decode(errors="replace").partition(":")
        if kind == "task":
            self.tasks.pop(name, None)
        elif kind == "session":
            row = self.sessions.get(task_id_of(name), {}).pop(int(name.rpartition(".")[2]), None)
            self._ended[task_id_of(name)] -= _has_ended(row)
        self._changed.set()


def _has_ended(row: SessionState | None) -> bool:
    return row is not None and row.phase is Phase.ENDED


async def require(settings: Settings, topic: Topic) -> None:
    """Raises NotReady, at once, where no Kafka answers or the topic isn't there: what follows would wait for either."""
    await admin.partition_count(settings, topic.full_name(settings.namespace), reach_s=0)


async def unless_gone(settings: Settings, waiting: Coroutine[Any, Any, None], *, gone_s: float = GONE_S) -> None:
    """Await `waiting`. Raises NotReady where Kafka has been away for `gone_s` meanwhile; what waits is then cancelled."""
    task = asyncio.create_task(waiting, name="wait")
    answered_at = time.monotonic()
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=min(ASK_S, gone_s))
            with suppress(NotReady):
                await require(settings, sessions.TOPIC)
                answered_at = time.monotonic()
            if not task.done() and time.monotonic() - answered_at > gone_s:
                raise NotReady(
                    f"Kafka at {settings.bootstrap} has been away for {gone_s:.0f} s; the tasks go on when it is back (`polar status`)"
                )
        task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def submit(
    settings: Settings, requests: Sequence[TaskRequest], table: SessionTable, *, answer_s: float
) -> list[str]:
    """Produce tasks, all or none of them, and wait until a coordinator shows them; the ids that none has shown in time.

    A task that was submitted before with an equal body is the same task. Raises InputError for a body that is too large and for an
    id that is taken by another body (before anything is sent, unless another submits it at the same time), NotReady where Kafka
    doesn't take them all: submitting them again is safe.
    """
    bodies = {request.task_id: _sized(request) for request in requests}
    hashes = {task_id: body_hash(body) for task_id, body in bodies.items()}

    def missing() -> list[str]:
        return [task_id for task_id, expected in hashes.items() if not _is_shown(table, task_id, expected)]

    missing()  # refuses ids that are taken
    await _produce(settings, bodies)
    await table.until(lambda: not missing(), answer_s)
    return missing()


async def feed(
    settings: Settings,
    requests: AsyncIterable[TaskRequest],
    table: SessionTable,
    *,
    max_in_flight: int,
    on_sent: Callable[[TaskRequest, int], None],
) -> None:
    """Produce tasks as they come, each as soon as it leaves at most `max_in_flight` sessions of this feed unfinished.

    `table` is of all tasks, since nobody knows which will come; one that had finished before counts for nothing, so a feed may begin
    anew. `on_sent` gets each task with the number of unfinished sessions, its own included. There is no deadline: what ends a session is
    the coordinator's. Raises InputError for a task with more samples than that, a body that is too large and an id that is taken by
    another body, NotReady where Kafka doesn't take one; what was sent stays sent.
    """
    under_way: dict[str, TaskRequest] = {}

    def unfinished() -> int:
        for task_id in [task_id for task_id in under_way if table.is_finished(task_id)]:
            del under_way[task_id]
        return sum(task.num_samples - len(table.ended(task_id)) for task_id, task in under_way.items())

    def has_room(samples: int) -> bool:
        return unfinished() + samples <= max_in_flight

    topic = tasks.TOPIC.full_name(settings.namespace)
    producer = LogProducer(settings)
    await producer.start()
    try:
        async for request in requests:
            samples = request.num_samples
            if samples > max_in_flight:
                raise InputError(
                    f"{request.task_id}: num_samples",
                    samples,
                    f"more than {max_in_flight} sessions in flight; allow more",
                )
            body = _sized(request)
            _is_shown(table, request.task_id, body_hash(body))  # refuses an id that is taken
            await table.until(partial(has_room, samples), None)
            await producer.send_bytes(topic, body, key=request.task_id.encode(), headers=[], deadline_s=SEND_S)
            under_way[request.task_id] = request
            on_sent(request, unfinished())
    except Unacknowledged as error:
        raise NotReady(f"Kafka didn't take task {request.task_id}: {error}; feed them again, none is doubled") from None
    finally:
        await producer.stop()


async def cancel(settings: Settings, target: str) -> None:
    """Ask for the end of a task, or of one session of it, whether it is known yet or not. Raises NotReady."""
    is_session = "." in target
    task_id = task_id_of(target) if is_session else target
    fact = events.CancelRequested(uuid.uuid4().hex, task_id, target if is_session else None)
    await require(settings, events.TOPIC)
    producer = LogProducer(settings)
    await producer.start()
    try:
        await producer.send(events.TOPIC, fact, key=events.key_of(fact), task_id=task_id, deadline_s=SEND_S)
    except Unacknowledged as error:
        raise NotReady(f"Kafka didn't take the request: {error}") from None
    finally:
        await producer.stop()


def _sized(request: TaskRequest) -> bytes:
    """The canonical body. Raises InputError where it is too large."""
    body = request.canonical()
    if len(body) > BODY_LIMIT:
        raise InputError(request.task_id, f"{len(body)} bytes", f"a task has at most {BODY_LIMIT} bytes")
    return body


def _is_shown(table: SessionTable, task_id: str, expected: str) -> bool:
    """Whether the table shows the task with this body. Raises InputError where it shows another."""
    task = table.tasks.get(task_id)
    if task is None or task.body_hash is None:
        return False
    if task.body_hash != expected:
        raise InputError("task_id", task_id, "already used with another body; choose a new id")
    return True


async def _produce(settings: Settings, bodies: dict[str, bytes]) -> None:
    topic = tasks.TOPIC.full_name(settings.namespace)
    producer = LogProducer(settings)
    await producer.start()
    items = list(bodies.items())
    sent = 0
    try:
        for first in range(0, len(items), AT_ONCE):
            chunk = items[first : first + AT_ONCE]
            sends = (
                producer.send_bytes(topic, body, key=task_id.encode(), headers=[], deadline_s=SEND_S)
                for task_id, body in chunk
            )
            await asyncio.gather(*sends)
            sent += len(chunk)
    except Unacknowledged as error:
        raise NotReady(
            f"Kafka took {sent} of {len(items)} tasks, then: {error}; submit them again, none is doubled"
        ) from None
    finally:
        await producer.stop()
