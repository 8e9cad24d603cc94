"""Finds one session's records on Kafka, reading as little as possible: one partition of the table, the log from the session's `Open`, and
trajectories from around the time when it ended.

Only committed records are read. Raises NotReadyError if Kafka doesn't answer. `assembly.py` interprets the records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from polar.show.assembly import Log, assemble
from polar.show.story import Story
from polar.table import require_topic
from topics import completions, events, sessions, trajectories
from topics.completions import RefusedRequest
from topics.contract.topic import HOUR_MS, Topic
from topics.environment.settings import Settings
from topics.log import admin, kafka
from topics.log.owner import STOP_DEADLINE_S, OwnershipLostError, read_back
from topics.log.partition import partition_of_task
from topics.types.errors import NotReadyError
from topics.types.session import Phase, SessionState, TaskState
from topics.types.trajectory import Trajectory

BEFORE_MS = 60_000
"""A trajectory is in one transaction with its `Emitted`, by the same clock; a transaction takes at most 30 s."""
AROUND_MS = HOUR_MS
"""Without an `Emitted`: the row became ENDED after the coordinator had read of the trajectory, by another clock."""
SEEK_S = 30.0


@dataclass
class Rows:
    """One task's rows in the coordinator's table."""

    task: TaskState | None = None
    sessions: dict[int, SessionState] = field(default_factory=dict)
    """By sample index."""
    written_at: dict[int, int] = field(default_factory=dict)
    """When each session's newest row was written, unix ms on the coordinator's clock."""


async def read_rows(settings: Settings, task_id: str) -> Rows:
    """The task's rows. `task` is None if no coordinator has shown the task, or after its tombstone."""
    await require_topic(settings, sessions.TOPIC)
    found = Rows()
    wanted = f"task:{task_id}".encode(), f"session:{task_id}.".encode()
    partition = await _partition(settings, sessions.TOPIC, task_id)
    async with aclosing(_records(settings, sessions.TOPIC, partition, None)) as records:
        async for record in records:
            if record.key != wanted[0] and not (record.key or b"").startswith(wanted[1]):
                continue
            match sessions.CODEC.known(record.value):
                case TaskState() as row:
                    found.task = row
                case SessionState() as row:
                    found.sessions[row.sample_index] = row
                    found.written_at[row.sample_index] = record.timestamp
                case None if record.key == wanted[0]:
                    found = Rows()
    return found


async def read_story(settings: Settings, rows: Rows, sample: int) -> Story:
    """The session's story; `rows` hold its task and itself."""
    assert rows.task is not None, "a session's task is known"
    session = rows.sessions[sample]
    log = (await read_logs(settings, [session]))[session.session_id]
    trajectory = await read_trajectory(settings, rows, sample, log)
    # In a thread: the tree of a long session's messages takes seconds, and the page has other visitors.
    return await asyncio.to_thread(assemble, rows.task, session, log, trajectory)


async def read_trajectory(settings: Settings, rows: Rows, sample: int, log: Log) -> Trajectory | None:
    """The session's trajectory. None: it isn't written yet, or has left Kafka. `log`: the session's."""
    assert rows.task is not None, "a session's task is known"
    session = rows.sessions[sample]
    if session.phase is not Phase.ENDED and log.emitted_at is None:
        return None
    topic = trajectories.topic(rows.task.plan.output if rows.task.plan else None)
    partition = await _partition(settings, completions.TOPIC, session.task_id)
    around = (rows.written_at[sample], AROUND_MS) if log.emitted_at is None else (log.emitted_at, BEFORE_MS)
    return await _find_trajectory(settings, topic, partition, session.session_id, *around)


async def read_calls(settings: Settings, rows: Rows, samples: Iterable[int]) -> list[Story]:
    """The stories of some samples without their trajectories, in one pass over the log; `rows` hold their task and them."""
    assert rows.task is not None, "a session's task is known"
    chosen = [rows.sessions[sample] for sample in samples]
    logs = await read_logs(settings, chosen)
    task = rows.task
    return await asyncio.to_thread(
        lambda: [assemble(task, session, logs[session.session_id], None) for session in chosen]
    )


async def read_logs(settings: Settings, chosen: Sequence[SessionState]) -> dict[str, Log]:
    """The log of each session of one task, from its attempt's `Open` to its `Emitted` or the end; empty if no run was granted."""
    logs = {session.session_id: Log(session.run_claim_id) for session in chosen}
    starts = {session.session_id.encode(): session.log_offset for session in chosen if session.log_offset is not None}
    if not starts:
        return logs
    partition = await _partition(settings, completions.TOPIC, chosen[0].task_id)
    async with aclosing(_records(settings, completions.TOPIC, partition, min(starts.values()))) as records:
        async for record in records:
            if record.key is None or record.offset < starts.get(record.key, record.offset + 1):
                continue
            decoded = completions.CODEC.known(record.value)
            if decoded is None:
                continue
            name = record.key.decode()
            logs[name] = logs[name].take(decoded, record.timestamp)
            if logs[name].emitted_at is not None:
                del starts[record.key]
                if not starts:
                    break
    return logs


async def read_refused(settings: Settings, session: SessionState) -> list[RefusedRequest]:
    """The requests of the session that the proxy refused before they became calls, in log order."""
    return (await read_logs(settings, [session]))[session.session_id].refused


async def read_facts(settings: Settings, task_id: str, ago_s: float) -> list[events.Fact]:
    """The facts about a task and its sessions of the last `ago_s` seconds, in log order."""
    partition = await _partition(settings, events.TOPIC, task_id)
    start = await _first_since(settings, events.TOPIC, partition, round((time.time() - ago_s) * 1000))
    found: list[events.Fact] = []
    if start is not None:
        async with aclosing(_records(settings, events.TOPIC, partition, start)) as records:
            async for record in records:
                fact = events.CODEC.known(record.value)
                if fact is not None and events.task_of(fact) == task_id:
                    found.append(fact)
    return found


async def _find_trajectory(
    settings: Settings, topic: Topic, partition: int, session_id: str, at_ms: int, slack_ms: int
) -> Trajectory | None:
    """The session's trajectory, if it was written within `slack_ms` of `at_ms`."""
    start = await _first_since(settings, topic, partition, at_ms - slack_ms)
    if start is None:
        return None
    key = session_id.encode()
    async with aclosing(_records(settings, topic, partition, start)) as records:
        async for record in records:
            if record.key == key and isinstance(found := trajectories.CODEC.known(record.value), Trajectory):
                return found
            if record.timestamp > at_ms + slack_ms:
                return None
    return None


async def _first_since(settings: Settings, topic: Topic, partition: int, instant_ms: int) -> int | None:
    """Offset of the first retained record at or after a time. None if there is none."""
    name = topic.full_name(settings.namespace)
    try:
        await admin.partition_count(settings, name)
    except NotReadyError:
        await require_topic(settings, completions.TOPIC)
        return None  # Kafka answers, so someone has deleted this output topic
    source = kafka.TopicPartition(name, partition)
    reader = kafka.consumer(settings)
    with _kafka_there(settings):
        try:
            async with asyncio.timeout(SEEK_S):
                await reader.start()
                first = (await reader.offsets_for_times({source: instant_ms}))[source]
        finally:
            await kafka.stop(reader, STOP_DEADLINE_S)
    return None if first is None else first.offset


async def _partition(settings: Settings, topic: Topic, task_id: str) -> int:
    count = await admin.partition_count(settings, topic.full_name(settings.namespace))
    return partition_of_task(task_id, count)


async def _records(
    settings: Settings, topic: Topic, partition: int, start: int | None
) -> AsyncGenerator[kafka.Record, None]:
    with _kafka_there(settings):
        async with aclosing(read_back(settings, topic.full_name(settings.namespace), partition, start)) as records:
            async for record in records:
                yield record


@contextmanager
def _kafka_there(settings: Settings) -> Iterator[None]:
    try:
        yield
    except (kafka.KafkaError, OwnershipLostError, TimeoutError) as error:
        raise NotReadyError(f"Kafka at {settings.bootstrap} doesn't answer: {error!r}") from None
