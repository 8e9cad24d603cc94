"""What a table keeps of tasks, in a service that runs for months. The rows and letters come from the test, not from Kafka."""

from __future__ import annotations

from aiokafka import ConsumerRecord

from polar.table import SessionTable
from tests.polar.coordinator import task
from topics import dead_letters, tasks
from topics.environment.settings import Settings
from topics.log.kafka import Headers, Record
from topics.types.session import Phase, SessionState, TaskState
from topics.types.task import TaskRequest, body_hash

SUBMITTED = [task(name, 1) for name in ("shown", "refused", "other", "pending")]


def record(key: str, value: bytes | None = None, headers: Headers = ()) -> Record:
    made: Record = ConsumerRecord("polar.x", 0, 0, 1, 0, key.encode(), value, None, 0, 0, tuple(headers))
    return made


def hashes(*requests: TaskRequest) -> dict[str, str]:
    return {request.task_id: body_hash(request.canonical()) for request in requests}


def refuse(table: SessionTable, request: TaskRequest) -> None:
    headers = dead_letters.headers(
        reason="no", field="agent", process="fanout", topic=tasks.TOPIC.full_name("polar"), partition=0, offset=0
    )
    table._on_letter(request.canonical(), record(request.task_id, request.canonical(), headers))


def test_a_table_expects_tasks_until_they_are_shown_or_refused() -> None:
    table = SessionTable(Settings())
    table.expect(hashes(*SUBMITTED))
    refuse(table, SUBMITTED[1])
    for name, shown_hash in (("shown", hashes(SUBMITTED[0])["shown"]), ("other", "another body's")):
        table._on_row(TaskState(name, 1, shown_hash), record(name))
    assert table._expected.keys() == {"other", "pending"}
    # The other body was preferred, so ours is refused.
    refuse(table, SUBMITTED[2])
    assert table._expected.keys() == {"pending"}
    assert table.refusals.keys() == {"refused", "other"}
    # Submitted again, with the body that is shown, which no letter refuses.
    table.expect(hashes(SUBMITTED[0]))
    assert table._expected.keys() == {"pending"}


def test_nothing_is_left_of_a_task_that_expired() -> None:
    table = SessionTable(Settings())
    table._on_row(TaskState("t", 1, "hash"), record("task:t"))
    table._on_row(SessionState("t.0", "t", 0, Phase.ENDED, 1), record("session:t.0"))
    for key in ("session:t.0", "task:t"):
        table._on_tombstone(record(key))
    assert (table.tasks, table.sessions, table._ended, table._built_ms, table._changed_ms) == ({}, {}, {}, {}, {})
