"""Transactions that Kafka left open: their owner ends them, as they were meant to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.hanging_transactions import leave_open
from topics import events, sessions
from topics.environment.settings import Settings
from topics.log import owner
from topics.log.owner import FencedProducer, Keeper, PartitionOwner, Write, read_back

DEADLINE_S = 60.0


def row(settings: Settings, value: bytes) -> Write:
    return Write(sessions.TOPIC.full_name(settings.namespace), 0, b"key", value)


async def rows(settings: Settings) -> list[bytes | None]:
    topic = sessions.TOPIC.full_name(settings.namespace)
    return [record.value async for record in read_back(settings, topic, 0)]


async def hang(settings: Settings, producer: FencedProducer, *, commits: bool) -> None:
    """Write the row `new` in a transaction that hangs on the table, after the row `old` in one that doesn't."""
    await producer.begin()
    await producer.write([row(settings, b"old")])
    await producer.commit()
    fact = Write(events.TOPIC.full_name(settings.namespace), 0, b"key", b"fact")
    await leave_open(settings, producer, [fact], [row(settings, b"new")], commits=commits)


@asynccontextmanager
async def owning(settings: Settings, keep: Keeper) -> AsyncIterator[None]:
    """An owner that writes to the table, as long as the context lasts."""
    stop = asyncio.Event()
    made = PartitionOwner(settings, "test", events.TOPIC, keep, writes=[sessions.TOPIC])
    running = asyncio.create_task(made.run(stop))
    async with asyncio.timeout(DEADLINE_S):
        yield
        stop.set()
        await running


@pytest.mark.parametrize(("commits", "expected"), [(True, [b"old", b"new"]), (False, [b"old"])])
async def test_a_successor_ends_what_its_predecessor_left_open(
    settings: Settings, commits: bool, expected: list[bytes]
) -> None:
    """Without that it waits for its own table, which nobody else writes."""
    producer = FencedProducer(settings, "test.0")
    await producer.start()
    await hang(settings, producer, commits=commits)
    read: asyncio.Queue[list[bytes | None]] = asyncio.Queue()

    async def keep(partition: int, _: FencedProducer) -> None:
        if partition == 0:
            read.put_nowait(await rows(settings))
        await asyncio.Event().wait()

    async with owning(settings, keep):
        assert await read.get() == expected
    await producer.stop()


async def test_an_owner_with_nothing_to_write_still_ends_what_hangs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the readers of its outputs would wait until there is something to write, which may be never."""
    monkeypatch.setattr(owner, "WATCH_S", 0.5)
    read: asyncio.Queue[list[bytes | None]] = asyncio.Queue()
    kept = 0

    async def keep(partition: int, producer: FencedProducer) -> None:
        nonlocal kept
        if partition == 0:
            kept += 1
            if kept == 1:
                await hang(settings, producer, commits=True)
            else:
                read.put_nowait(await rows(settings))
        await asyncio.Event().wait()

    async with owning(settings, keep):
        assert await read.get() == [b"old", b"new"]
    assert kept == 2
