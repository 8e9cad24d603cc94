"""Rows of the table as NVIDIA's events. Pure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from polar.rest.event_stream import WAITING_EVENTS, EventBus, TableEvents
from topics.sessions import Row
from topics.types.session import Phase, SessionState, Status, TaskState


def task(ended: int = 0, *, closed: bool = False) -> TaskState:
    return TaskState("t", 2, "hash", ended=ended, closed_at=9 if closed else None)


def session(phase: Phase, index: int = 0) -> SessionState:
    return SessionState(f"t.{index}", "t", index, phase, 1, status=Status.COMPLETED if phase is Phase.ENDED else None)


def test_a_task_tells_its_beginning_each_end_and_its_end_once() -> None:
    events = TableEvents()
    rows: list[Row] = [
        task(),
        task(),
        session(Phase.QUEUED),
        session(Phase.QUEUED),
        session(Phase.RUNNING),
        session(Phase.ENDED),
        task(1),
    ]
    assert told(events, *rows, task(2), task(2, closed=True), task(2, closed=True)) == [
        ("task.created", "running"),
        ("session.state_changed", "REGISTERED"),
        ("session.state_changed", "RUNNING"),
        ("session.state_changed", "COMPLETED"),
        ("task.updated", 1),
        ("task.updated", 2),
        ("task.completed", "completed"),
    ]


def told(events: TableEvents, *rows: Row) -> list[tuple[str, Any]]:
    """The events of rows, each with its status or its number of ended sessions."""
    found = [event for row in rows for event in events.of(row)]
    return [(kind, data.get("status", data.get("completed_sessions"))) for kind, data in found]


def test_an_ended_session_that_is_written_again_is_no_event() -> None:
    events = TableEvents()
    told(events, session(Phase.RUNNING), task())
    assert told(events, session(Phase.ENDED), task(1)) == [
        ("session.state_changed", "COMPLETED"),
        ("task.updated", 1),
    ]
    assert told(events, session(Phase.ENDED), task(1)) == []


def test_a_rebuilt_table_gives_no_events_of_finished_tasks() -> None:
    """`polar topics rebuild-table` writes all rows again; of an old task it doesn't know how its sessions ended."""
    events = TableEvents()
    rows: list[Row] = [session(Phase.ENDED), session(Phase.ENDED, 1), task(2)]
    assert len(told(events, session(Phase.RUNNING), task(), *rows, task(2, closed=True))) == 6
    lost = SessionState("old.0", "old", 0, Phase.ENDED, 1)
    assert told(events, *rows[:2], task(2, closed=True), lost, TaskState("old", 1, "hash", ended=1, closed_at=9)) == []


def test_a_session_that_ends_as_the_first_that_is_read_of_its_task_is_an_event() -> None:
    assert told(TableEvents(), session(Phase.ENDED), task(1)) == [
        ("task.created", "running"),
        ("session.state_changed", "COMPLETED"),
        ("task.updated", 1),
    ]


async def test_a_slow_stream_loses_the_oldest_events_and_no_other_waits() -> None:
    bus = EventBus()
    slow = bus.frames()
    assert b'"hello"' in await anext(slow)
    for index in range(WAITING_EVENTS + 5):
        bus.on_row(session(Phase.QUEUED, index), None)
    first = json.loads((await anext(slow)).removeprefix(b"data: "))
    assert first["data"]["session_id"] == "t.5"
    await slow.aclose()
    bus.on_row(session(Phase.QUEUED, 999), None)  # nobody listens


async def test_an_idle_stream_is_kept_alive() -> None:
    bus = EventBus(ping_s=0.01)
    idle = bus.frames()
    assert b'"hello"' in await anext(idle)
    async with asyncio.timeout(10):
        assert b'"ping"' in await anext(idle)
    await idle.aclose()
