"""Kafka's bad days, on three real brokers under load: what was acknowledged is on the log once, in order, and everything goes on by itself.

The load is what a fleet puts on Kafka, by its own clients: calls that are awaited, a table that its owner writes in transactions, and
followers that read along.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from tests.kafka_cluster import Cluster
from topics import completions, sessions
from topics.completions import Disowned
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.owner import FencedProducer, OwnershipLostError, PartitionOwner, Write, read_back
from topics.log.producer import LogProducer
from topics.log.silent_broker import SILENCE_S

pytestmark = [pytest.mark.hard, pytest.mark.timeout(600)]
TOPICS = (completions.TOPIC, sessions.TOPIC)
PARTITIONS = 4
DEADLINE_S = 120.0
SENDERS = 8
ROW_S = 0.05
"""Between two transactions of a partition."""
GROUP = "coordinator"
SEND_S = 5.0
"""For a record to reach a leader that is there, on a busy machine."""
AWAY_S = 60.0
"""How long there is no broker at all."""
GROWTH_MB = 64
"""What a process may grow by in a bad day."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), announce=print) as started:
        yield started


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """As `polar worker` has it: hundreds of lines a second, each kept with all that its traceback holds, are no memory of ours."""
    caplog.set_level(logging.CRITICAL, logger="aiokafka")


@pytest.fixture
async def settings(cluster: Cluster, namespace: str, tmp_path: Path) -> Settings:
    """Of a system whose topics are there, on a cluster that is whole."""
    await asyncio.to_thread(cluster.start)
    made = Settings(kafka=cluster.bootstrap, namespace=namespace, data=tmp_path)
    await admin.apply(made, [replace(topic, partitions=PARTITIONS) for topic in TOPICS], embedded=False)
    return made


@dataclass
class Load:
    """Calls, transactions and reading, all at once, and what came of them."""

    settings: Settings
    calls: list[str] = field(default_factory=list)
    """Acknowledged."""
    sent: list[int] = field(default_factory=lambda: [0] * SENDERS)
    """How many of them each sender has."""
    rows: dict[int, list[str]] = field(default_factory=dict)
    """Committed, by partition."""
    read: list[str] = field(default_factory=list)
    """By the follower."""
    gone: list[str] = field(default_factory=list)
    """Rows that were committed and weren't there when their owner came back."""
    longest_s: float = 0.0
    """That a call waited for its acknowledgement."""

    async def send(self, producer: LogProducer, sender: int, stop: asyncio.Event) -> None:
        """Calls, one after the other."""
        number = 0
        while not stop.is_set():
            call = Disowned(f"{sender}.{number}", f"t{sender}.0", "c", "closed")
            began = time.monotonic()
            await producer.send(
                completions.TOPIC, call, key=call.session_id, task_id=f"t{sender}", deadline_s=3 * DEADLINE_S
            )
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.calls.append(call.call_id)
            number = self.sent[sender] = number + 1
            await asyncio.sleep(0.005)

    async def keep(self, partition: int, producer: FencedProducer) -> None:
        """A table's owner: reads it back, then writes rows that say which came before them."""
        topic = sessions.TOPIC.full_name(self.settings.namespace)
        rows = [(record.value or b"").decode() async for record in read_back(self.settings, topic, partition)]
        known = self.rows.setdefault(partition, [])
        if rows[: len(known)] != known:
            self.gone.append(f"of {partition}: {known[len(rows) :] or known}")
        known[:] = rows
        while True:
            row = f"{partition}.{len(known)}"
            await producer.begin()
            await producer.write([Write(topic, partition, row.encode(), row.encode())])
            await producer.commit()
            known.append(row)
            await asyncio.sleep(ROW_S)

    async def moves_on(self) -> None:
        """Wait until calls, transactions and reading all have gone on from where they are."""
        calls, rows, read = len(self.calls), sum(map(len, self.rows.values())), len(self.read)
        sent = self.sent.copy()
        async with asyncio.timeout(DEADLINE_S):
            while not (
                all(moved > before for moved, before in zip(self.sent, sent, strict=True))
                and len(self.calls) > calls + 4 * SENDERS
                and sum(map(len, self.rows.values())) > rows + 8
                and len(self.read) > read + 4 * SENDERS
            ):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def load(settings: Settings) -> AsyncIterator[Load]:
    """Under way inside; at the end all that was acknowledged must be on the log, once and in order."""
    made, stop = Load(settings), asyncio.Event()
    producer = LogProducer(settings)
    await producer.start()
    follower = Follower(
        settings, completions.TOPIC, lambda call, _: made.read.append(call.call_id), since=Since.BEGINNING
    )
    await follower.start()
    owner = PartitionOwner(settings, GROUP, sessions.TOPIC, made.keep)
    before = psutil.Process().memory_info().rss
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(owner.run(stop))
        for sender in range(SENDERS):
            tasks.create_task(made.send(producer, sender, stop))
        await made.moves_on()
        yield made
        await made.moves_on()
        stop.set()
    grown = (psutil.Process().memory_info().rss - before) >> 20
    await follower.caught_up(DEADLINE_S)
    await follower.stop()
    await producer.stop()
    logged = await on_log(settings)
    assert logged == in_order(made.calls), "an acknowledged call is there once, after those before it"
    assert in_order(made.read) == logged, "a follower hands on each once, in order"
    assert made.gone == []
    for partition, rows in made.rows.items():
        assert rows == [f"{partition}.{number}" for number in range(len(rows))]
    assert grown < GROWTH_MB
    print(f"{len(made.calls)} calls, the longest {made.longest_s:.1f} s; {grown} MB more")


def in_order(calls: list[str]) -> dict[str, list[str]]:
    """Calls by sender, as they stand."""
    found: dict[str, list[str]] = {}
    for call in calls:
        found.setdefault(call.partition(".")[0], []).append(call)
    return found


async def on_log(settings: Settings) -> dict[str, list[str]]:
    found: list[str] = []
    for partition in range(PARTITIONS):
        async for record in read_back(settings, completions.TOPIC.full_name(settings.namespace), partition):
            call = completions.CODEC.decode(record.value or b"")
            assert isinstance(call, Disowned)
            found.append(call.call_id)
    return in_order(found)


@pytest.fixture
def name(settings: Settings) -> str:
    """Of the calls' topic."""
    return completions.TOPIC.full_name(settings.namespace)


async def test_a_leader_that_dies_costs_seconds_and_comes_back_with_half_its_disk(
    cluster: Cluster, settings: Settings, name: str
) -> None:
    async with load(settings) as under_load:
        leader = await asyncio.to_thread(cluster.leader_of, name, 0)
        await asyncio.to_thread(cluster.kill, leader)
        began = time.monotonic()
        assert await asyncio.to_thread(cluster.leader_of, name, 0) != leader
        print(f"a new leader after {time.monotonic() - began:.1f} s")
        await under_load.moves_on()
        print(f"moving on after {time.monotonic() - began:.1f} s")
        for segment in cluster.folder(leader).data.glob(f"{settings.namespace}.*/*.log"):
            os.truncate(segment, segment.stat().st_size // 2)
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.settle)


async def test_who_asks_while_one_of_three_is_dead_is_answered_by_another(
    cluster: Cluster, settings: Settings, name: str
) -> None:
    """Brokers tell of the dead one until its session has ended, and clients pick among those that they are told of."""
    await asyncio.to_thread(cluster.kill, cluster.nodes[-1])
    for _ in range(20):
        assert await admin.partition_count(settings, name, reach_s=0) == PARTITIONS


async def test_all_three_are_restarted_one_by_one(cluster: Cluster, settings: Settings) -> None:
    async with load(settings):
        for node in cluster.nodes:
            await asyncio.to_thread(cluster.settle)
            await asyncio.to_thread(cluster.stop_node, node)
            await asyncio.to_thread(cluster.start_node, node)


async def test_a_leader_that_hangs_is_left_for_another(cluster: Cluster, settings: Settings, name: str) -> None:
    """It keeps its connections and says nothing, as a machine does whose power is gone."""
    async with load(settings) as under_load:
        leader = await asyncio.to_thread(cluster.leader_of, name, 0)
        hung = psutil.Process(cluster.broker(leader).pid)
        hung.suspend()
        try:
            began = time.monotonic()
            await under_load.moves_on()
            print(f"moving on after {time.monotonic() - began:.1f} s")
            # Each sender waits for at most two requests that the hung leader doesn't answer (its own and one for metadata), and then sends.
            assert under_load.longest_s < 2 * SILENCE_S + SEND_S
        finally:
            hung.resume()
        await asyncio.to_thread(cluster.settle)


async def test_a_broker_whose_disk_is_full_leaves_and_comes_back(cluster: Cluster, settings: Settings) -> None:
    """The disk is full from some KiB a file on: the limit that any user may put on a process of his own."""
    async with load(settings) as under_load:
        broker = cluster.broker(2)
        psutil.Process(broker.pid).rlimit(psutil.RLIMIT_FSIZE, (16_384, 16_384))
        assert await asyncio.to_thread(broker.wait, DEADLINE_S) is not None
        await under_load.moves_on()
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.settle)


async def test_no_broker_at_all_costs_time_only(cluster: Cluster, settings: Settings) -> None:
    async with load(settings) as under_load:
        await asyncio.to_thread(cluster.kill)
        stood = len(under_load.calls)
        await asyncio.sleep(AWAY_S)
        assert len(under_load.calls) == stood
        await asyncio.to_thread(cluster.start)


async def test_owners_come_and_go_under_load_and_none_loses_a_row(settings: Settings) -> None:
    async with load(settings) as under_load:
        second, stop = PartitionOwner(settings, GROUP, sessions.TOPIC, under_load.keep), asyncio.Event()
        running = asyncio.create_task(second.run(stop))
        async with asyncio.timeout(DEADLINE_S):
            while not 0 < len(second.partitions) < PARTITIONS:
                await asyncio.sleep(0.05)
        await under_load.moves_on()
        stop.set()
        await running


async def test_an_owner_that_wakes_up_after_its_leader_died_is_fenced(cluster: Cluster, settings: Settings) -> None:
    topic = sessions.TOPIC.full_name(settings.namespace)
    paused, successor = (FencedProducer(settings, "an-owner.0") for _ in range(2))
    await paused.start()
    await paused.begin()
    await paused.write([Write(topic, 0, b"key", b"of the paused one")])
    await asyncio.to_thread(cluster.kill, await asyncio.to_thread(cluster.leader_of, topic, 0))
    await successor.start()
    await successor.begin()
    await successor.write([Write(topic, 0, b"key", b"of its successor")])
    await successor.commit()
    with pytest.raises(OwnershipLostError):
        await paused.commit()
    assert [record.value async for record in read_back(settings, topic, 0)] == [b"of its successor"]
    await paused.stop()
    await successor.stop()
