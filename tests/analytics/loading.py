"""A load for the lake: tasks with their facts, calls and trajectories; and what must be found of it, and is."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import duckdb
import msgspec

from analytics.lake import places, rows
from analytics.lake.manifest import Lake, Manifest
from tests.analytics.story import conversation, submitted, yielded
from tests.waiting import eventually
from topics import completions, events, trajectories
from topics.completions import Disowned, Open
from topics.contract.codec import UnknownRecord, encode
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.events import RunFinished
from topics.log import kafka
from topics.log.owner import read_back
from topics.log.partition import partition_of_task
from topics.types.session import Status
from topics.types.trajectory import GroupFinished

SAMPLED = "heartbeats"
"""A table that isn't counted: its rows are those of the writers in the tests, and of their clocks."""
PART = {"nodes": "node", "traces": "trace_id", "trajectory_calls": "call"}
"""What names a row among those of one record."""


class Sent(NamedTuple):
    """One record and where it goes."""

    topic: Topic
    task_id: str
    key: str
    record: msgspec.Struct


def task(number: int, calls: int = 3, output: str | None = None) -> Iterator[Sent]:
    """All that the log holds of a task of one sample."""
    task_id, session_id = f"t{number}", f"t{number}.0"
    talk = conversation(session_id, 0, calls)
    yield Sent(events.TOPIC, task_id, task_id, submitted(task_id, 1))
    yield Sent(completions.TOPIC, task_id, session_id, Open(session_id, 1, "claim"))
    for _, call in talk:
        yield Sent(completions.TOPIC, task_id, session_id, call)
    yield Sent(completions.TOPIC, task_id, session_id, Disowned("lost", session_id, "claim", "hung_up"))
    finished = RunFinished(f"f{number}", session_id, 1, "claim", Status.COMPLETED, 0)
    yield Sent(events.TOPIC, task_id, session_id, finished)
    topic = trajectories.topic(output)
    yield Sent(topic, task_id, session_id, yielded(session_id, 1, talk, Status.COMPLETED, 1.0))
    group = GroupFinished(task_id, 1, [session_id], [1.0], [Status.COMPLETED])
    yield Sent(topic, task_id, task_id, group)


async def send(settings: Settings, *sent: Sent, written_ms: int | None = None) -> None:
    """Put records on the log, acknowledged. `written_ms`: their timestamp; None: now."""
    producer: Any = kafka.producer(settings)
    await producer.start()
    try:
        pending = []
        for topic, task_id, key, record in sent:
            name = topic.full_name(settings.namespace)
            partition = partition_of_task(task_id, topic.embedded_partitions)
            pending.append(
                await producer.send(
                    name, encode(record), key=key.encode(), partition=partition, timestamp_ms=written_ms
                )
            )
        await asyncio.gather(*pending)
    finally:
        await kafka.stop(producer, 5)


async def on_the_log(settings: Settings, *outputs: str | None) -> Counter[tuple[Any, ...]]:
    """The rows that the lake must hold: all that the log holds in these trajectories topics, in events and completions."""
    found: Counter[tuple[Any, ...]] = Counter()
    topics: list[tuple[Topic, str | None]] = [(events.TOPIC, None), (completions.TOPIC, None)]
    topics += [(trajectories.topic(output), output) for output in outputs]
    for topic, output in topics:
        codec = {"events": events.CODEC, "completions": completions.CODEC}.get(topic.name, trajectories.CODEC)
        for partition in range(topic.embedded_partitions):
            async for record in read_back(settings, topic.full_name(settings.namespace), partition):
                decoded = codec.decode(record.value or b"")  # type: ignore[attr-defined]
                assert not isinstance(decoded, UnknownRecord)
                for table, row in rows.of_record(decoded, rows.origin(record), output):
                    found[named(table, row)] += 1
    return found


def named(table: str, row: rows.Row) -> tuple[Any, ...]:
    part = row.get(PART.get(table, ""))
    return table, row.get("output"), row["log_partition"], row["log_offset"], part, row["logged_at"]


def in_the_lake(lake: Lake, manifest: Manifest | None = None) -> Counter[tuple[Any, ...]]:
    """The rows that it holds, as DuckDB reads the files of the newest manifest."""
    manifest = manifest or lake.newest()
    lake.fetch(manifest, manifest.files)
    found: Counter[tuple[Any, ...]] = Counter()
    with duckdb.connect() as connection:
        for table, files in manifest.files.items():
            if table == SAMPLED:
                continue
            paths = [str(lake.path(table, file)) for file in files]
            assert sum(file.rows for file in files) > 0
            read = connection.execute(
                "select * replace (epoch_ms(logged_at) as logged_at) from read_parquet(?)", [paths]
            )
            names = [column[0] for column in read.description]
            for values in read.fetchall():
                found[named(table, dict(zip(names, values, strict=True)))] += 1
    return found


def rows_of(lake: Lake) -> int:
    return sum(file.rows for table, made in lake.newest().files.items() if table != SAMPLED for file in made)


async def arrived(settings: Settings, expected: Counter[tuple[Any, ...]], deadline_s: float = 30) -> Lake:
    """Wait until the lake holds as many rows, and check that they are these; the lake."""
    lake = places.lake(settings)
    await eventually(lambda: rows_of(lake) >= expected.total(), deadline_s, every_s=0.05)
    with lake.pin() as manifest:
        found = await asyncio.to_thread(in_the_lake, lake, manifest)
    assert found == expected, {"missing": expected - found, "too many": found - expected}
    return lake


def tasks(count: int, seed: int, start: int = 0) -> list[Sent]:
    """Records of many tasks, shuffled task by task as they would come together."""
    chance = random.Random(seed)
    running = [list(task(start + number, chance.randrange(1, 6)))[::-1] for number in range(count)]
    made: list[Sent] = []
    while running:
        one = chance.choice(running[:20])
        made.append(one.pop())
        if not one:
            running.remove(one)
    return made
