"""Memory and log of sessions that are over: the coordinator's tables over five simulated weeks of a million sessions each.

    python -m benchmarks.growth [--format table|json]

One process with all twelve partitions, without Kafka. Tasks of eight samples end hour by hour; rows, expiry and tombstones are the real
ones, a row stays for eight days after its group's end. Bytes are those of the compacted topic, uncompressed.
"""

from __future__ import annotations

import gc

import psutil
from msgspec.structs import replace

from benchmarks import report
from benchmarks.coordinator import BODY, PLAN
from benchmarks.report import Figure
from consumers.coordinator.commands import TaskExpired
from consumers.coordinator.decide import decide
from consumers.coordinator.state import Table
from topics import sessions
from topics.contract.codec import encode
from topics.log.partition import partition_of_task
from topics.types.session import Phase, SessionState, Status, TaskState, session_id_of

SESSIONS = 1_000_000
"""A week's."""
WEEKS = 5
SAMPLES = 8
HOURS = 7 * 24
HOUR_MS = 3_600_000
PARTITIONS = sessions.TOPIC.partitions


def run() -> list[Figure]:
    """All figures."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    tables = [Table(partition) for partition in range(PARTITIONS)]
    figures: list[Figure] = []
    size = rows = 0
    for hour in range(WEEKS * HOURS):
        now = hour * HOUR_MS
        for table in tables:
            for task_id in table.pop_expired(now):
                expired = decide(table, TaskExpired(task_id), now)
                size -= _size(table, task_id)
                table.apply(expired)
        for number in range(SESSIONS // SAMPLES // HOURS):
            size += _end(tables, f"task-{hour:04}-{number:04}", now)
        rows = sum(len(table.sessions()) for table in tables)
        if (hour + 1) % HOURS == 0:
            week = (hour + 1) // HOURS
            gc.collect()
            grown = process.memory_info().rss - before
            report.say(f"week {week}: {rows:,} sessions, {grown / 1e6:,.0f} MB")
            figures += [
                Figure(f"sessions in the tables after week {week}", rows, ""),
                Figure(f"memory after week {week}", grown / 1e6, "MB"),
                Figure(f"rows on the log after week {week}", size / 1e6, "MB"),
            ]
    return [*figures, Figure("memory of a session that is over", grown / rows, "bytes")]


def _end(tables: list[Table], task_id: str, now: int) -> int:
    """A task whose group is closed; the bytes of its rows."""
    table = tables[partition_of_task(task_id, PARTITIONS)]
    task = TaskState(task_id, SAMPLES, "0" * 64, BODY, plan=PLAN)
    table.load(replace(task, ended=SAMPLES, closed_at=now))
    for index in range(SAMPLES):
        row = SessionState(session_id_of(task_id, index), task_id, index, Phase.ENDED, now)
        claims = {"run_claim_id": f"r-{index:016x}", "init_claim_id": f"i-{index:016x}"}
        table.load(replace(row, status=Status.COMPLETED, reward=1.0, calls=30, trainable_tokens=3000, **claims))
    return _size(table, task_id)


def _size(table: Table, task_id: str) -> int:
    """Bytes of a task's rows on the log, without keys."""
    task = table.task(task_id)
    return sum(len(encode(row)) for row in (task, *table.sessions_of(task_id)) if row is not None)


if __name__ == "__main__":
    report.main(__doc__, run)
