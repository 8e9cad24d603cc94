"""`GET /events`: changes of the coordinator's table as Server-Sent Events, by NVIDIA's names.

A client that reads too slowly loses the oldest events: the table, not the stream, is the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from polar.event_streams import PING_S
from polar.rest.result_mapping import model_of, session_status
from topics.sessions import Position, Row
from topics.types.session import Phase, SessionState, TaskState

WAITING_EVENTS = 256
"""Events that wait for one slow client."""

Event = tuple[str, dict[str, Any]]


class TableEvents:
    """Makes events of rows: a row is written more often than what it shows here changes.

    A task that was running when reading began is created again, at its next change. Rows of finished tasks, which a rebuilt table has
    again, are no events.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, dict[str, str]] = {}
        """Last statuses of unfinished tasks' sessions, by task id and session id."""
        self._ended: dict[str, int] = {}
        """Ended sessions of unfinished tasks, by id."""
        self._waiting: dict[str, list[Event]] = {}
        """Ends of sessions by task id, until the task's row shows whether the task is finished: a transaction has it after them."""

    def of(self, row: Row) -> list[Event]:
        """The events of a row that was written."""
        match row:
            case TaskState():
                return self._of_task(row)
            case SessionState():
                return self._of_session(row)
            case Position():
                return []

    def _of_task(self, task: TaskState) -> list[Event]:
        waiting = self._waiting.pop(task.task_id, [])
        is_known = task.task_id in self._ended
        if task.closed_at is not None:
            self._statuses.pop(task.task_id, None)
        if task.body_hash is None or (task.closed_at is not None and not is_known):
            return []
        found: list[Event] = []
        if not is_known:
            plan = task.plan
            created = {
                "task_id": task.task_id,
                "status": "running",
                "harness": None if plan is None else plan.harness,
                "model": model_of(task),
                "num_samples": task.num_samples,
            }
            found.append(("task.created", created))
            self._ended[task.task_id] = 0
        found += waiting
        if task.ended > self._ended[task.task_id]:
            counts = {"completed_sessions": task.ended, "total_sessions": task.num_samples}
            found.append(("task.updated", {"task_id": task.task_id, **counts}))
            self._ended[task.task_id] = task.ended
        if task.closed_at is not None:
            del self._ended[task.task_id]
            completed = {"task_id": task.task_id, "status": "completed", "completed_sessions": task.ended}
            found.append(("task.completed", completed))
        return found

    def _of_session(self, row: SessionState) -> list[Event]:
        has_ended = row.phase is Phase.ENDED
        if has_ended and row.status is None:
            return []  # of a finished task in a rebuilt table: the log has lost how the session ended
        status = session_status(row)
        statuses = self._statuses.setdefault(row.task_id, {})
        if statuses.get(row.session_id) == status:
            return []
        statuses[row.session_id] = status
        changed = {"task_id": row.task_id, "session_id": row.session_id, "status": status, "node_id": row.worker_id}
        event = ("session.state_changed", changed)
        if has_ended and row.task_id not in self._ended:
            self._waiting.setdefault(row.task_id, []).append(event)
            return []
        return [event]


class EventBus:
    """Passes each event to all open streams."""

    def __init__(self, ping_s: float = PING_S) -> None:
        """`ping_s`: seconds without an event after which a stream gets a ping."""
        self._ping_s = ping_s
        self._table = TableEvents()
        self._streams: set[asyncio.Queue[bytes]] = set()

    def on_row(self, row: Row, _: object) -> None:
        """A row of the table was written."""
        for event, data in self._table.of(row):
            frame = _frame(event, data)
            for stream in self._streams:
                if stream.full():
                    stream.get_nowait()
                stream.put_nowait(frame)

    async def frames(self) -> AsyncGenerator[bytes]:
        """The frames of one stream: `hello`, then events, and a `ping` when there is none for a while."""
        with self._stream() as stream:
            yield _frame("hello", {})
            while True:
                try:
                    async with asyncio.timeout(self._ping_s):
                        frame = await stream.get()
                except TimeoutError:
                    frame = _frame("ping", {})
                yield frame

    @contextmanager
    def _stream(self) -> Iterator[asyncio.Queue[bytes]]:
        stream: asyncio.Queue[bytes] = asyncio.Queue(WAITING_EVENTS)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)


def _frame(event: str, data: dict[str, Any]) -> bytes:
    at = datetime.now(UTC).isoformat()
    return b"data: " + msgspec.json.encode({"type": event, "ts": at, "data": data}) + b"\n\n"
