"""The writer against a real broker: what is on the log is in the lake, once, whatever happens on the way."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from aiokafka.admin import RecordsToDelete
from structlog.testing import capture_logs

from analytics.lake.manifest import Lake
from analytics.queries.query import connect
from analytics.writing import retries, writer
from analytics.writing.writer import run_analytics
from consumers.metrics import Metrics
from tests import older_log
from tests.analytics.loading import arrived, in_the_lake, on_the_log, rows_of, send, task, tasks
from tests.waiting import eventually
from topics import completions, dead_letters, events, fleet, trajectories, verifications, workers
from topics.completions import Disowned
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.fleet import FleetState, PolicyVersion
from topics.log import admin, kafka
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.types.errors import NotReadyError
from topics.types.session import Status
from topics.types.tokens import pack_logprobs
from topics.types.trajectory import Call, Node, Trace, Trajectory
from topics.verifications import Verification
from topics.waiting.backoff import Backoff
from topics.workers import Heartbeat

DEADLINE_S = 30.0
HOUR_MS = 3_600_000
PARTITION = partition_of_task("t1", completions.TOPIC.embedded_partitions)


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    made = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(made, catalogue.FIXED, embedded=True)
    return made


@pytest.fixture(autouse=True)
def flush_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FLUSH_S", 0.3)


@asynccontextmanager
async def writing(settings: Settings, metrics: Metrics | None = None) -> AsyncIterator[asyncio.Event]:
    """A writer in this process; the event stops it."""
    stop = asyncio.Event()
    running = asyncio.create_task(run_analytics(settings, stop, metrics))
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
        asker = kafka.consumer(settings, group="analytics")
        await asker.start()
        source = kafka.TopicPartition(events.TOPIC.full_name(settings.namespace), 0)

        async def is_committed() -> bool:
            return await asker.committed(source) == lake.newest().offset(("events", 0))

        await eventually(is_committed, DEADLINE_S, every_s=0.1)
        await kafka.stop(asker, 5)
        idle = rows_of(lake)
    assert rows_of(lake) == idle, "idle, it writes nothing but heartbeats"


async def test_what_was_read_is_written_and_shown_before_the_writer_ends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FLUSH_S", 3600)
    await send(settings, *task(1))
    async with writing(settings):
        taken = asyncio.Event()
        take = writer.Writer._take

        def and_tell(*given: Any) -> None:
            take(*given)
            taken.set()

        monkeypatch.setattr(writer.Writer, "_take", and_tell)
        await asyncio.wait_for(taken.wait(), DEADLINE_S)
    written = in_the_lake(Lake(settings.lake_folder))
    assert written
    with duckdb.connect(settings.lake_folder.with_name(f"{settings.namespace}.duckdb"), read_only=True) as shown:
        for table in {table for table, *_ in written}:
            counted = shown.execute(f"select count(*) from lake.{table}").fetchall()
            assert counted == [(sum(1 for name, *_ in written if name == table),)]


async def test_verifications_are_in_the_lake_the_newest_of_a_trace_counts_and_metrics_tell_the_drift(
    settings: Settings,
) -> None:
    first = Verification("t.0", "t.0/a", "large", "http://a", 1, 10, 0.0, 0.5, 0.5, 0.01, 3, pack_logprobs([-1.0]))
    producer = LogProducer(settings)
    await producer.start()
    for record in (first, msgspec.structs.replace(first, p99=0.0, over=0, verified_at=2)):
        await producer.send(verifications.TOPIC, record, key=record.session_id)
    await producer.stop()
    metrics, stop = Metrics(), asyncio.Event()
    running = asyncio.create_task(run_analytics(settings, stop, metrics))
    try:
        await eventually(lambda: b'polar_verified_tokens_total{engine="large"} 20.0' in metrics.text(), DEADLINE_S)
        assert b'polar_drifted_tokens_total{engine="large"} 3.0' in metrics.text()
        with connect(settings) as reader:
            found = list(reader.ask("SELECT trace_id, task_id, p99, over FROM verifications").rows())
    finally:
        stop.set()
        await asyncio.wait_for(running, DEADLINE_S)
    assert found == [("t.0/a", "t", 0.0, 0)]


async def test_weights_processes_and_dead_letters_are_in_the_lake_once_a_restart_included(settings: Settings) -> None:
    Lake(settings.lake_folder).prepare()
    producer = LogProducer(settings)
    await producer.start()

    async def found(count: int) -> list[tuple[object, ...]]:
        asked = """
            SELECT 'weights', policy_version, engine, published_at IS NOT NULL FROM policy_versions
            UNION ALL SELECT 'letter', source_offset, reason, replayed_at IS NOT NULL FROM dead_letters
            UNION ALL SELECT 'process', sum(pid), role, bool_and(left_at IS NOT NULL) FROM workers WHERE role = 'proxy' GROUP BY role
            ORDER BY ALL
        """
        rows: list[tuple[object, ...]] = []

        def is_there() -> bool:
            with connect(settings) as reader:
                rows[:] = reader.ask(asked).rows()
            return len(rows) == count

        # In a thread: the writer runs on this loop.
        await eventually(lambda: asyncio.to_thread(is_there), DEADLINE_S, every_s=0.2)
        return rows

    try:
        for record in (FleetState(1), PolicyVersion(7), PolicyVersion(8, "large")):
            await producer.send(fleet.TOPIC, record, key=fleet.key_of(record))
        for _ in range(3):
            await producer.send(workers.TOPIC, Heartbeat("p-1", "proxy", "host", 5, calls=1), key="p-1")
        letters = dead_letters.TOPIC.full_name(settings.namespace)
        await producer.send_bytes(letters, b"{bad}", key=b"t", headers=letter("no such harness", 5))
        async with writing(settings):
            assert await found(4) == [
                ("letter", 5, "no such harness", False),
                ("process", 5, "proxy", False),
                ("weights", 7, None, True),
                ("weights", 8, "large", True),
            ]
        await producer.send_bytes(letters, b"{bad}", key=b"t", headers=letter("not JSON", 6))
        await producer.send_bytes(letters, b"", headers=dead_letters.replay_headers(0, "polar.tasks[0]@9"))
        await producer.send(workers.TOPIC, Heartbeat("p-1", "proxy", "host", 5, leaving=True), key="p-1")
        async with writing(settings):
            assert await found(5) == [
                ("letter", 5, "no such harness", True),
                ("letter", 6, "not JSON", False),
                ("process", 5, "proxy", True),
                ("weights", 7, None, True),
                ("weights", 8, "large", True),
            ]
        with connect(settings) as reader:
            of_proxy = list(
                reader.ask("SELECT log_offset, leaving FROM lake.heartbeats WHERE worker_id = 'p-1' ORDER BY 1").rows()
            )
            roles = list(
                reader.ask(
                    "SELECT role, count(*) FROM workers WHERE role = 'analytics' AND left_at IS NOT NULL GROUP BY 1"
                ).rows()
            )
        # The clock may begin a minute between the three.
        assert [leaving for _, leaving in of_proxy] in ([False, True], [False, False, True])
        assert of_proxy[0][0] == 0
        assert roles == [("analytics", 1)], "the first of our two writers, whose end the second read"
    finally:
        await producer.stop()


def letter(reason: str, offset: int) -> list[tuple[str, bytes]]:
    """The headers of a dead letter."""
    return dead_letters.headers(
        reason=reason, field=None, process="fanout", topic="polar.tasks", partition=0, offset=offset
    )


async def test_without_a_kafka_to_read_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="no Kafka"):
        await run_analytics(Settings(data=tmp_path), asyncio.Event())


@pytest.mark.hard
async def test_two_writers_share_a_lake_through_rebalances(settings: Settings) -> None:
    """The first leaves while records come, a third joins."""
    load = tasks(60, seed=3)

    async def come() -> None:
        for start in range(0, len(load), 20):
            await send(settings, *load[start : start + 20])

    async with writing(settings) as first, writing(settings):
        coming = asyncio.create_task(come())
        await eventually(lambda: bool(Lake(settings.lake_folder).versions()), DEADLINE_S)
        first.set()
        async with writing(settings):
            await coming
            await arrived(settings, await on_the_log(settings, None))


async def test_a_lake_of_another_kafka_is_refused(settings: Settings) -> None:
    await send(settings, *task(1))
    lake = Lake(settings.lake_folder)
    lake.prepare()
    other = lake.commit(lake.newest(), lake.newest().advanced({("events", 0): 7}, {}, cluster="another"))
    with pytest.raises(NotReadyError, match=r"records of the Kafka cluster another, .* set POLAR_LAKE"):
        await asyncio.wait_for(run_analytics(settings, asyncio.Event()), DEADLINE_S)
    assert lake.newest() == other


async def test_a_named_output_topic_that_is_made_meanwhile_is_followed(settings: Settings) -> None:
    async with writing(settings):
        await send(settings, *task(1))
        await arrived(settings, await on_the_log(settings, None))
        await admin.apply(settings, [trajectories.topic("mine")], embedded=True)
        await send(settings, *task(2, output="mine"))
        lake = await arrived(settings, await on_the_log(settings, None, "mine"))
    assert {output for _, output, *_ in in_the_lake(lake)} == {None, "mine"}


async def test_no_record_stops_the_writer(settings: Settings) -> None:
    good, *_ = task(1)
    orphan = Trajectory(
        "t1.0", "t1", 0, 1, 1, Status.COMPLETED, "b", "shell", nodes=[Node(7, b"\0\0\0\0")], traces=[Trace("t", 0, [0])]
    )
    circle = [Node(1, b"\0\0\0\0"), Node(0, b"\0\0\0\0", b"\0\0\0\0", call=0)]
    calls = [Call("c", "main", "answered", "openai_chat", 0, 0, 1, 1)]
    endless = msgspec.structs.replace(orphan, nodes=circle, calls=calls, traces=[Trace("t", 1, [1])])
    torn = Disowned("half", "t1.0", "claim", "hung_up")
    await send_raw(settings, completions.TOPIC, b"\xff no record", encode(torn), b"", b"\x81\xa4type\xa5later")
    await send_raw(settings, trajectories.TOPIC, encode(orphan), encode(endless))
    await send(settings, good)
    with capture_logs() as said:
        async with writing(settings):
            lake = Lake(settings.lake_folder)
            await eventually(lambda: rows_of(lake) == 2, DEADLINE_S)
            await eventually(lambda: lake.newest().offset(("completions", PARTITION)) == 4, DEADLINE_S)
            await eventually(lambda: lake.newest().offset(("trajectories", PARTITION)) == 2, DEADLINE_S)
    assert (actions(said)["analytics.undecodable"], actions(said)["analytics.unfit"]) == (2, 2)
    assert {table for table, *_ in in_the_lake(lake)} == {"events", "disowned"}


async def test_what_retention_removed_unread_is_said_and_gone_on_from(settings: Settings) -> None:
    await send(settings, *task(1))
    async with writing(settings):
        await arrived(settings, before := await on_the_log(settings, None))
    await send(settings, *task(2))
    source = kafka.TopicPartition(events.TOPIC.full_name(settings.namespace), partition_of_task("t2", 4))
    lost = await remove_records(settings, source)
    await send(settings, *task(3))
    with capture_logs() as said:
        async with writing(settings):
            lake = await arrived(settings, before | await on_the_log(settings, None))
    (gap,) = [line for line in said if line["action"] == "analytics.gap"]
    assert (gap["log_level"], gap["lost"]) == ("warning", lost)
    assert lake.newest().offset(("events", source.partition)) is not None


async def test_heartbeats_that_left_the_log_unread_are_no_gap(settings: Settings) -> None:
    await send(settings, *task(1))
    async with writing(settings):
        await arrived(settings, before := await on_the_log(settings, None))
    producer = LogProducer(settings)
    await producer.start()
    await producer.send(workers.TOPIC, Heartbeat("p-1", "proxy", "host", 5), key="p-1")
    await producer.stop()
    await remove_records(settings, kafka.TopicPartition(workers.TOPIC.full_name(settings.namespace), 0))
    await send(settings, *task(2))
    with capture_logs() as said:
        async with writing(settings):
            await arrived(settings, before | await on_the_log(settings, None))
    assert "analytics.gap" not in actions(said)


async def test_an_output_topic_that_was_made_anew_is_read_from_its_beginning(settings: Settings) -> None:
    lake = Lake(settings.lake_folder)
    await admin.apply(settings, [trajectories.topic("mine")], embedded=True)
    await send(settings, *[one for number in range(4) for one in task(number, output="mine")])
    async with writing(settings):
        await arrived(settings, await on_the_log(settings, None, "mine"))
        before = rows_of(lake)
    await delete_topic(settings, trajectories.topic("mine"))
    await admin.apply(settings, [trajectories.topic("mine")], embedded=True)
    added = [sent for sent in task(0, output="mine") if sent.topic.name == "trajectories.mine"]
    await send(settings, *added)
    with capture_logs() as said:
        async with writing(settings):
            await eventually(lambda: rows_of(lake) > before, DEADLINE_S)
    assert "analytics.log_replaced" in actions(said)
    again = [row for row in in_the_lake(lake) if row[:4] == ("groups", "mine", partition_of_task("t0", 4), 1)]
    assert len(again) == 2


async def test_a_log_that_lost_its_end_is_not_written_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is ahead of the log, as after a machine's loss."""
    await send(settings, *task(1))
    lake = Lake(settings.lake_folder)
    async with writing(settings):
        await arrived(settings, await on_the_log(settings, None))
        before = in_the_lake(lake)
    newest, source = lake.newest(), ("events", partition_of_task("t1", 4))
    lake.commit(newest, newest.advanced({source: 1000}, {}))
    with capture_logs() as said:
        async with writing(settings):
            await eventually(lambda: "analytics.log_cut" in actions(said), DEADLINE_S)
            await send(settings, *tasks(10, seed=4, start=2))
            await eventually(lambda: lake.newest().offset(source) not in (1000, None), DEADLINE_S)
    assert all(in_the_lake(lake)[row] == 1 for row in before)


@pytest.mark.parametrize(
    ("added", "clock_ms"),
    [(1, 0), (40, -HOUR_MS)],
    ids=["shorter than the position", "past the position, written by a clock an hour behind"],
)
async def test_a_log_restored_from_an_older_copy_is_read_on_where_the_copy_ends(
    settings: Settings, added: int, clock_ms: int
) -> None:
    await send(settings, *tasks(8, seed=6))
    copied = await older_log.copy(settings, events.TOPIC, completions.TOPIC, trajectories.TOPIC)
    await send(settings, *tasks(8, seed=7, start=20))
    async with writing(settings):
        await arrived(settings, before := await on_the_log(settings, None))
    await older_log.restore(settings, copied)
    await send(settings, *tasks(added, seed=8, start=100), written_ms=int(time.time() * 1000) + clock_ms)
    async with writing(settings):
        await arrived(settings, before | await on_the_log(settings, None))
    await send(settings, *task(1000))
    async with writing(settings):
        await arrived(settings, before := before | await on_the_log(settings, None))
    # The lake has records of two pasts now.
    await older_log.restore(settings, copied)
    await send(settings, *tasks(added, seed=9, start=2000))
    async with writing(settings):
        await arrived(settings, before | await on_the_log(settings, None))


async def test_a_lake_restored_from_an_older_copy_gets_what_it_lacks(settings: Settings, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for start in (0, 20):
        await send(settings, *tasks(10, seed=start, start=start))
        async with writing(settings):
            await arrived(settings, await on_the_log(settings, None))
        if not start:
            shutil.copytree(settings.lake_folder, copy)
    shutil.rmtree(settings.lake_folder)
    shutil.copytree(copy, settings.lake_folder)
    async with writing(settings):
        await arrived(settings, await on_the_log(settings, None))


async def test_a_folder_that_cant_be_written_is_said_once_and_waited_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", Backoff(0.1, 0.2))
    lake = settings.lake_folder
    lake.parent.mkdir()
    lake.touch()
    await send(settings, *task(1))
    with capture_logs() as said:
        async with writing(settings):
            await eventually(lambda: bool(said), DEADLINE_S)
            lake.unlink()
            await arrived(settings, await on_the_log(settings, None))
    failing = [line for line in said if line["action"] == "analytics.failing"]
    assert len(failing) == 1
    assert str(lake) in failing[0]["event"]
    assert "NotADirectoryError" in failing[0]["why"] or "FileExistsError" in failing[0]["why"]


async def test_a_writer_that_cannot_write_has_a_lag_until_it_can(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", Backoff(0.1, 0.2))
    metrics = Metrics()

    async def lag() -> float:
        (line,) = [line for line in (await metrics.scrape()).decode().splitlines() if line.startswith("polar_lag{")]
        return float(line.removeprefix('polar_lag{role="analytics"} '))

    async def is_low() -> bool:
        return await lag() < 50

    await send(settings, *task(1))
    async with writing(settings, metrics):
        lake = await arrived(settings, await on_the_log(settings, None))
        await eventually(is_low, DEADLINE_S)
        manifests = lake.folder / "manifest"
        manifests.rename(lake.folder / "aside")
        manifests.touch()
        missed = [*tasks(30, seed=6, start=2)]
        await send(settings, *missed)
        assert len(missed) > 200
        assert await lag() >= len(missed)
        manifests.unlink()
        (lake.folder / "aside").rename(manifests)
        await arrived(settings, await on_the_log(settings, None))
        await eventually(is_low, DEADLINE_S)


async def test_a_lake_that_was_removed_under_its_writer_is_written_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", Backoff(0.1, 15.0))
    await send(settings, *task(1))
    async with writing(settings):
        await arrived(settings, await on_the_log(settings, None))
        shutil.rmtree(settings.lake_folder)
        await send(settings, *task(2))
        await arrived(settings, await on_the_log(settings, None))


async def test_a_damaged_manifest_stops_the_writer_until_it_is_removed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", Backoff(0.1, 0.2))
    await send(settings, *task(1))
    with capture_logs() as said:
        async with writing(settings):
            lake = await arrived(settings, await on_the_log(settings, None))
            newest = max((lake.folder / "manifest").iterdir())
            newest.write_bytes(newest.read_bytes()[:50])
            await send(settings, *task(2))
            await eventually(lambda: any("is damaged" in line.get("why", "") for line in said), DEADLINE_S)
            newest.unlink()
            await arrived(settings, await on_the_log(settings, None))
    assert all("damaged" in line["why"] for line in said if line["action"] == "analytics.failing")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


async def test_a_full_disk_costs_time_only_and_readers_go_on(
    settings: Settings, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "PAUSES", Backoff(0.1, 0.2))
    full = settings.model_copy(update={"lake": str(small_disk)})
    lake = Lake(full.lake_folder)
    ballast = small_disk / "ballast"
    await send(full, *task(1))
    with capture_logs() as said:
        async with writing(full):
            await arrived(full, before := await on_the_log(full, None))
            ballast.write_bytes(bytes(free(small_disk)))
            await send(full, *tasks(30, seed=5, start=2))
            # The upkeep may fail first.
            await eventually(lambda: any("writing the lake in" in line["event"] for line in said), DEADLINE_S)
            with lake.pin() as pinned:
                assert in_the_lake(lake, pinned) == before
            ballast.unlink()
            await arrived(full, await on_the_log(full, None))
            await eventually(lambda: "analytics.recovered" in actions(said), DEADLINE_S)
    ours = [line for line in said if line["action"] == "analytics.failing" and "writing the lake in" in line["event"]]
    assert len(ours) == 1
    assert "No space left" in ours[0]["why"]


def free(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def actions(lines: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """How often each action was logged."""
    return Counter(line["action"] for line in lines)


async def send_raw(settings: Settings, topic: Topic, *values: bytes) -> None:
    producer = kafka.producer(settings)
    await producer.start()
    for value in values:
        await (await producer.send(topic.full_name(settings.namespace), value, key=b"t1.0", partition=PARTITION))
    await kafka.stop(producer, 5)


async def remove_records(settings: Settings, source: kafka.TopicPartition) -> int:
    """Remove all records of a partition as retention does; how many the lake hadn't."""
    asker = kafka.consumer(settings)
    client: Any = kafka.admin(settings)
    await asker.start()
    await client.start()
    end = (await asker.end_offsets([source]))[source]
    await client.delete_records({source: RecordsToDelete(before_offset=end)})
    await client.close()
    await kafka.stop(asker, 5)
    return end - (Lake(settings.lake_folder).newest().offset(("events", source.partition)) or 0)


async def delete_topic(settings: Settings, topic: Topic) -> None:
    client: Any = kafka.admin(settings)
    await client.start()
    name = topic.full_name(settings.namespace)
    await client.delete_topics([name])

    async def is_gone() -> bool:
        return name not in await client.list_topics()

    await eventually(is_gone, DEADLINE_S, every_s=0.1)
    await client.close()
