"""Following a topic, on a real broker: from where, in which order, past what."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.topics.conftest import Apply, Read
from tests.waiting import eventually
from topics import control, dead_letters, sessions
from topics.contract.codec import encode
from topics.control import Drain
from topics.environment.settings import Settings
from topics.log import kafka as clients
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer
from topics.types.errors import NotReadyError
from topics.types.session import TaskState


class Log:
    """Writes to `polar.control` and keeps what a follower of it hands on."""

    def __init__(self, settings: Settings, producer: LogProducer) -> None:
        self.settings = settings
        self.name = control.TOPIC.full_name(settings.namespace)
        self.seen: list[str] = []
        self._producer = producer

    async def write(self, *workers: str) -> None:
        for worker in workers:
            await self._producer.send(control.TOPIC, Drain(worker), key=worker)

    async def write_bytes(self, value: bytes) -> None:
        await self._producer.send_bytes(self.name, value, key=b"k")

    def follower(self, since: Since, letters: LogProducer | None = None) -> Follower:
        return Follower(
            self.settings,
            control.TOPIC,
            lambda drain, _: self.seen.append(drain.worker_id),
            since=since,
            letters=letters,
        )

    @asynccontextmanager
    async def followed(self, since: Since) -> AsyncIterator[Follower]:
        follower = self.follower(since)
        await follower.start()
        yield follower
        await follower.stop()


@pytest.fixture
async def log(settings: Settings, producer: LogProducer, apply: Apply) -> Log:
    await apply(control.TOPIC)
    return Log(settings, producer)


async def test_from_the_beginning_all_is_handed_on_in_order_before_start_returns(log: Log) -> None:
    written = [f"w{n}" for n in range(1200)]
    await asyncio.gather(*(log.write(worker) for worker in written))
    follower = log.follower(Since.BEGINNING)
    assert follower.progress == (0, 0)
    await follower.start()
    assert sorted(log.seen) == sorted(written)
    assert follower.progress == (1200, 1200)
    await log.write("a", "b", "c")
    await follower.caught_up(10)
    assert log.seen[-3:] == ["a", "b", "c"]
    assert follower.progress == (1200, 1200)
    await follower.stop()


async def test_from_the_end_only_what_comes_is_handed_on(log: Log) -> None:
    await log.write("old")
    async with log.followed(Since.END) as follower:
        await log.write("new")
        await follower.caught_up(10)
    assert log.seen == ["new"]


async def test_from_a_while_ago_what_is_older_is_left_out(log: Log) -> None:
    past: Any = clients.producer(log.settings)
    await past.start()
    minute_ago = int((time.time() - 60) * 1000)
    await past.send_and_wait(log.name, encode(Drain("old")), key=b"k", timestamp_ms=minute_ago)
    await past.stop()
    await log.write("new")
    async with log.followed(Since.ago(30)):
        assert log.seen == ["new"]


async def test_all_partitions_are_read_and_tombstones_are_told(
    settings: Settings, apply: Apply, producer: LogProducer
) -> None:
    await apply(sessions.TOPIC)
    for n in range(20):
        await producer.send(sessions.TOPIC, TaskState(f"t{n}"), key=f"task:t{n}", task_id=f"t{n}")
    raw = clients.producer(settings)
    await raw.start()
    await (await raw.send(sessions.TOPIC.full_name(settings.namespace), None, key=b"task:t0", partition=0))
    await raw.stop()
    rows: list[str] = []
    forgotten: list[bytes | None] = []
    follower = Follower(
        settings,
        sessions.TOPIC,
        lambda row, _: rows.append(row.task_id),
        since=Since.BEGINNING,
        on_tombstone=lambda record: forgotten.append(record.key),
    )
    await follower.start()
    await follower.stop()
    assert sorted(rows) == sorted(f"t{n}" for n in range(20))
    assert forgotten == [b"task:t0"]


async def test_unknown_types_and_rubbish_are_counted_and_passed_and_rubbish_is_told(
    log: Log, producer: LogProducer, apply: Apply, read: Read
) -> None:
    await apply(dead_letters.TOPIC)
    follower = log.follower(Since.BEGINNING, producer)
    await log.write_bytes(msgspec.msgpack.encode({"type": "hibernate"}))
    await log.write_bytes(b"\xc1")
    await log.write_bytes(msgspec.msgpack.encode({"type": "drain", "worker_id": 7}))
    await log.write("well")
    await follower.start()

    async def both() -> list[dict[str, bytes]]:
        found = await read(dead_letters.TOPIC.full_name(log.settings.namespace))
        return [dict(record.headers) for record in found] if len(found) == 2 else []

    letters = await eventually(both)
    await follower.stop()
    assert log.seen == ["well"]
    assert follower.skipped == {"unknown_hibernate": 1, "undecodable": 2}
    assert {each["source-offset"] for each in letters} == {b"1", b"2"}
    assert any(b"worker_id" in each["reason"] for each in letters)


@pytest.mark.parametrize("committed", [False, True])
async def test_markers_at_the_end_of_a_topic_hold_nothing_up(settings: Settings, apply: Apply, committed: bool) -> None:
    await apply(sessions.TOPIC)
    name = sessions.TOPIC.full_name(settings.namespace)
    owner = clients.producer(settings, transactional_id="owner.0")
    await owner.start()
    for task_id, commits in (("kept", True), ("void", False)):
        await owner.begin_transaction()
        row = msgspec.msgpack.encode(TaskState(task_id))
        await (await owner.send(name, row, key=b"task", partition=0))
        await (owner.commit_transaction() if commits else owner.abort_transaction())
    await owner.stop()
    rows: list[str] = []
    follower = Follower(
        settings, sessions.TOPIC, lambda row, _: rows.append(row.task_id), since=Since.BEGINNING, committed=committed
    )
    await follower.start(deadline_s=20)
    await follower.stop()
    assert rows == (["kept"] if committed else ["kept", "void"])


async def test_what_a_handler_raises_ends_the_follower_and_is_shown(log: Log) -> None:
    def refuse(drain: Drain, _: clients.Record) -> None:
        raise RuntimeError(f"no {drain.worker_id}")

    follower = Follower(log.settings, control.TOPIC, refuse, since=Since.END)
    await follower.start()
    await log.write("thanks")
    done, _ = await asyncio.wait([follower.failed], timeout=10)
    assert done
    with pytest.raises(RuntimeError, match="no thanks"):
        follower.failed.result()
    with pytest.raises(RuntimeError, match="no thanks"):
        await follower.caught_up(5)
    await follower.stop()


async def test_a_topic_that_is_not_there_is_said(settings: Settings) -> None:
    follower = Follower(settings, control.TOPIC, lambda *_: None, since=Since.END)
    with pytest.raises(NotReadyError, match=r"not ready after 1 s: .*no topic .*control; `polar topics apply`"):
        await follower.start(deadline_s=1)
    mine = {asyncio.current_task()}
    await eventually(lambda: asyncio.all_tasks() == mine)


async def test_a_topic_made_while_start_waits_is_followed(log: Log, settings: Settings, apply: Apply) -> None:
    follower = Follower(settings, sessions.TOPIC, lambda *_: None, since=Since.END)
    starting = asyncio.create_task(follower.start(deadline_s=20))
    await apply(sessions.TOPIC)
    await starting
    await follower.stop()
