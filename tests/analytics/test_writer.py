"""The writer against a real broker: what is on the log is in the lake, once, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from analytics.writer import run_analytics
from polar.settings import Settings
from tests.analytics.loading import arrived, on_the_log, send, task, tasks
from topics import admin, catalogue, events, kafka

DEADLINE_S = 30.0


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    made = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(made, catalogue.FIXED, embedded=True)
    return made


@asynccontextmanager
async def writing(settings: Settings) -> AsyncIterator[asyncio.Event]:
    """A writer in this process; the event stops it."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_analytics(settings, stop))
    try:
        yield stop
    finally:
        stop.set()
        await asyncio.wait_for(running, DEADLINE_S)


async def test_what_is_on_the_log_is_in_the_lake_once_a_restart_included(settings: Settings) -> None:
    await send(settings, *tasks(20, seed=1), *task(1000, output="eval"))
    async with writing(settings):
        await arrived(settings, await on_the_log(settings, None, "eval"))
    await send(settings, *tasks(5, seed=2, start=20))
    async with writing(settings):
        lake = await arrived(settings, await on_the_log(settings, None, "eval"))
        version = lake.newest().version
        asker = kafka.consumer(settings, group="analytics")
        await asker.start()
        source = kafka.TopicPartition(events.TOPIC.full_name(settings.namespace), 0)
        async with asyncio.timeout(DEADLINE_S):
            while await asker.committed(source) != lake.newest().offset("events", 0):
                await asyncio.sleep(0.1)
        await kafka.stop(asker, 5)
    assert lake.newest().version == version, "idle, it writes nothing"
    assert settings.lake_folder.with_name(f"{settings.namespace}.duckdb").exists()
