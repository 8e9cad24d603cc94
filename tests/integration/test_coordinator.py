"""The coordinator against a real broker: nothing on its logs stops it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from consumers.coordinator.loop import run_coordinator
from polar.client import SessionTable
from polar.settings import Settings
from polar.types.session import Plan
from topics import admin, catalogue, dead_letters, events, sessions
from topics import kafka as clients
from topics.events import CancelRequested, TaskSubmitted
from topics.owner import read_back
from topics.partition import partition_of_task
from topics.producer import LogProducer

DEADLINE_S = 30.0
PARTITION = partition_of_task("t", sessions.TOPIC.embedded_partitions)
PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b"{}")


async def test_rows_that_are_none_are_passed_over_whatever_their_key(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    producer = LogProducer(settings)
    await producer.start()
    await litter(settings)
    stop = asyncio.Event()
    running = asyncio.create_task(run_coordinator(settings, stop))
    async with SessionTable(settings) as table:
        for fact in (TaskSubmitted("f", "t", 1, "hash", PLAN, body=b"{}"), CancelRequested("g", "t")):
            await producer.send(events.TOPIC, fact, key="t", task_id="t")
        assert await table.until(lambda: "t" in table.sessions, DEADLINE_S)
    stop.set()
    await asyncio.wait_for(running, DEADLINE_S)
    await producer.stop()
    letters = [record.value async for record in read_back(settings, dead_letters.TOPIC.full_name(namespace), 0)]
    assert letters == [b"\xff no row"]


async def litter(settings: Settings) -> None:
    """Bytes that are no row, and a tombstone, under a key that is no text, where task `t` lies."""
    producer = clients.producer(settings)
    await producer.start()
    for value in (b"\xff no row", None):
        topic = sessions.TOPIC.full_name(settings.namespace)
        await (await producer.send(topic, value, key=b"\xff", partition=PARTITION))
    await producer.stop()
