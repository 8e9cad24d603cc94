"""Lists of tasks: the index against a plain sort, and the loop's longest pause while a table of 100,000 tasks is listed."""

from __future__ import annotations

import asyncio
import time
from itertools import islice, pairwise
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiokafka import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from polar.rest.api import RestApi
from polar.rest.event_stream import EventBus
from polar.rest.result_mapping import task_summary
from polar.rest.task_index import Place, TaskIndex
from polar.table import SessionTable
from topics.environment.settings import Settings
from topics.log.kafka import Record
from topics.sessions import Row
from topics.types.session import Phase, SessionState, Status, TaskState

TASKS = 100_000
STALL_S = 0.05
HEADERS = {"Authorization": "Bearer t"}


def record(key: bytes = b"", *, written_ms: int = 1) -> Record:
    made: Record = ConsumerRecord("sessions", 0, 0, written_ms, 0, key, None, None, 0, 0, ())
    return made


def task(task_id: str, samples: int = 1) -> TaskState:
    return TaskState(task_id, samples, "hash")


def session(task_id: str, index: int, since: int, *, is_ended: bool) -> SessionState:
    phase, status = (Phase.ENDED, Status.COMPLETED) if is_ended else (Phase.RUNNING, None)
    return SessionState(f"{task_id}.{index}", task_id, index, phase, since, status=status)


names = st.sampled_from(["a", "b", "c", "d"])
changes = st.one_of(
    st.builds(task, names, st.just(2)),
    st.builds(session, names, st.integers(0, 1), st.integers(1, 9), is_ended=st.booleans()),
    names.map(lambda name: f"task:{name}"),
    st.builds("session:{}.{}".format, names, st.integers(0, 1)),
)


@given(st.lists(changes, max_size=30), st.integers(0, 30))
def test_an_index_that_follows_changes_is_that_of_the_whole_table(found: list[Row | str], built_after: int) -> None:
    table = SessionTable(Settings())
    index = None
    for at, change in enumerate(found):
        if at == built_after:
            table.on_change = (index := TaskIndex(table)).update
        if isinstance(change, str):
            table._on_tombstone(record(change.encode()))
        else:
            table._on_row(change, record(written_ms=at))
    index = index or TaskIndex(table)
    whole = TaskIndex(table)
    assert {place.task_id for place in index.newest()} == {place.task_id for place in whole.newest()}
    assert all(one > other for one, other in pairwise(index.newest()))
    assert (index.counts(), index.pending_sessions) == (whole.counts(), whole.pending_sessions)
    for status in ("running", "completed"):
        assert {place.task_id for place in index.newest(status=status)} == {
            place.task_id for place in whole.newest() if table.is_finished(place.task_id) is (status == "completed")
        }


def test_pages_name_each_task_once() -> None:
    table = SessionTable(Settings())
    for number in range(10):
        table._on_row(task(f"t{number}"), record(written_ms=number // 3))
    index = TaskIndex(table)
    pages: list[Place] = []
    while page := list(islice(index.newest(before=pages[-1] if pages else None), 3)):
        pages += page
    assert [place.task_id for place in pages] == [f"t{number}" for number in reversed(range(10))]


def test_a_task_changed_when_its_newest_row_was_written() -> None:
    """A row's own time is of the coordinator's clock, which counts from the beginning of the log."""
    table = SessionTable(Settings())
    table._on_row(task("t"), record(written_ms=1_795_794_192_000))
    table._on_row(session("t", 0, 185_052, is_ended=True), record(written_ms=1_795_794_193_500))
    (place,) = TaskIndex(table).newest()
    assert place == Place(1_795_794_193_500, "t")
    assert task_summary(table.tasks["t"], [], place.updated_ms)["updated_at"] == 1_795_794_193.5


async def longest_pause(until: asyncio.Future[Any]) -> float:
    """Seconds of this thread's CPU between two turns of the loop: other processes' work on the machine doesn't count."""
    longest, before = 0.0, time.thread_time()
    while not until.done():
        await asyncio.sleep(0.001)
        longest, before = max(longest, time.thread_time() - before), time.thread_time()
    return longest


async def test_a_list_of_a_large_table_does_not_stall_the_loop() -> None:
    table = SessionTable(Settings())
    for number in range(TASKS):
        task_id = f"task-{number}"
        table._on_row(task(task_id, 8), record(written_ms=number))
        table._on_row(session(task_id, 0, number, is_ended=True), record(written_ms=number))
    api = RestApi(Settings(), table, EventBus(), base_url="http://127.0.0.1", files=None)
    try:
        async with TestClient(TestServer(api.application("t")), headers=HEADERS) as client:

            async def listed(query: str) -> dict[str, Any]:
                async with client.get(f"/tasks?{query}") as answer:
                    assert answer.status == 200
                    found: dict[str, Any] = await answer.json()
                    return found

            async def all_lists() -> dict[str, Any]:
                await listed("limit=1000&harness=nobody")
                await listed("status=completed")
                await listed(f"since={TASKS}")
                return await listed("limit=1000")

            await listed("limit=1")  # the connection is open
            lists = asyncio.ensure_future(all_lists())
            assert await longest_pause(lists) < STALL_S
            first = lists.result()
            assert [one["task_id"] for one in first["tasks"][:2]] == [f"task-{TASKS - 1}", f"task-{TASKS - 2}"]
            after = await listed(f"limit=1&cursor={first['next_cursor']}")
            assert [one["task_id"] for one in after["tasks"]] == [f"task-{TASKS - 1001}"]
            assert (await listed(f"limit=1&cursor={TASKS * 2}.x"))["tasks"][0]["task_id"] == f"task-{TASKS - 1}"
            async with client.get("/tasks?cursor=x") as answer:
                assert answer.status == 422
    finally:
        await api.close()


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_index_counts_what_is_pending(is_ended: bool) -> None:
    table = SessionTable(Settings())
    table.on_change = (index := TaskIndex(table)).update
    table._on_row(task("t", 2), record())
    table._on_row(session("t", 0, 1, is_ended=True), record())
    table._on_row(session("t", 1, 1, is_ended=is_ended), record())
    assert index.pending_sessions == (0 if is_ended else 1)
    assert index.counts() == {"running": 0 if is_ended else 1, "completed": 1 if is_ended else 0}
