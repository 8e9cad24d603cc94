"""FastStream services on a real broker: records as a builder writes them, what handlers get, and what they may write."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from faststream.kafka import TestKafkaBroker
from faststream.kafka.annotations import KafkaMessage

from consumers.fanout import run_fanout
from polar import faststream as polar
from tests.polar.trainer.writing import Writer, finished, trajectory
from tests.waiting import eventually
from topics import events, sessions
from topics.contract import acl, catalogue
from topics.contract.codec import encode
from topics.dead_letters import Letter, Replay
from topics.environment.settings import Settings
from topics.events import CancelRequested, TaskSubmitted
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.owner import FencedProducer, Write
from topics.log.partition import partition_of_task
from topics.types.errors import InputError
from topics.types.session import SessionState, Stage, TaskState
from topics.types.task import TaskRequest, parse
from topics.types.trajectory import GroupFinished, Trajectory

PATIENCE_S = 60.0
PAGE = (Path(__file__).parents[2] / "docs" / "faststream.md").read_text()
NEWER = b"\x81\xa4type\xa5newer"


@pytest.fixture
def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    return Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)


@pytest.fixture
def offline() -> polar.Broker:
    """A broker that is never started."""
    return polar.broker(Settings(kafka="nowhere:1"))


@asynccontextmanager
async def serving(broker: polar.Broker) -> AsyncIterator[None]:
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


async def test_a_handler_gets_the_committed_records_that_it_names_and_the_rest_is_counted(settings: Settings) -> None:
    got: list[Any] = []
    groups: list[GroupFinished] = []
    broker = polar.broker(settings, logger=None)
    subscriber = broker.subscriber(polar.output("mine"), group_id="ours")

    @subscriber
    async def on_trajectory(record: Trajectory | polar.UnknownRecord) -> None:
        got.append(record)

    @subscriber
    async def on_group(group: GroupFinished) -> None:
        groups.append(group)

    silent = polar.broker(settings, logger=None)

    @silent.subscriber(polar.output("mine"), group_id="others")
    async def on_group_alone(group: GroupFinished) -> None:
        groups.append(group)

    async with Writer(settings, "mine") as writer:
        first = trajectory("t", 0, 2)
        rolled_back = FencedProducer(settings, "rolled-back")
        await rolled_back.start()
        await rolled_back.begin()
        number = partition_of_task("t", 4)
        name = f"{settings.namespace}.trajectories.mine"
        await rolled_back.write([Write(name, number, b"t", encode(trajectory("never")))])
        await rolled_back.stop()
        await writer.write([first, b"\xff no record", NEWER, trajectory("t", 1, 2), finished("t", [1.0, 1.0])], "t")
        async with serving(broker), serving(silent):
            await eventually(lambda: len(groups) == 2, PATIENCE_S)
    assert [record.session_id for record in got if isinstance(record, Trajectory)] == ["t.0", "t.1"]
    assert got[0] == first
    assert got[1] == polar.UnknownRecord("newer")
    assert broker.skipped == {"undecodable": 1}
    assert silent.skipped == {"undecodable": 1, "unknown_newer": 1, "Trajectory": 2}


async def test_a_record_whose_handler_fails_comes_again_before_the_next_and_a_restart_begins_behind_the_last(
    settings: Settings,
) -> None:
    seen: list[str] = []

    def service() -> polar.Broker:
        broker = polar.broker(settings, logger=None)

        @broker.subscriber(polar.trajectories, group_id="ours")
        async def handle(record: Trajectory) -> None:
            seen.append(record.session_id)
            if seen == ["t.0", "t.1"]:
                raise RuntimeError("the database is away")

        return broker

    async with Writer(settings) as writer:
        await writer.write([trajectory("t", index, 4) for index in range(3)])
        async with serving(service()):
            await eventually(lambda: len(seen) == 4, PATIENCE_S)
        assert seen == ["t.0", "t.1", "t.1", "t.2"]
        await writer.write([trajectory("t", 3, 4)])
        async with serving(service()):
            await eventually(lambda: seen[4:], PATIENCE_S)
    assert seen[4:] == ["t.3"]


async def test_tombstones_come_to_a_handler_that_names_none(settings: Settings) -> None:
    await admin.apply(settings, [sessions.TOPIC], embedded=True)
    keys: list[tuple[bytes | None, bool]] = []
    broker = polar.broker(settings, logger=None)

    @broker.subscriber(polar.sessions, group_id="table")
    async def row(row: TaskState | SessionState | None, message: KafkaMessage) -> None:
        raw: Any = message.raw_message
        keys.append((raw.key, row is None))

    producer = FencedProducer(settings, "table")
    await producer.start()
    await producer.begin()
    name = sessions.TOPIC.full_name(settings.namespace)
    await producer.write(
        [Write(name, 0, b"session:t.0", None), Write(name, 0, b"offset", encode(sessions.Position(1, 2)))]
    )
    await producer.write([Write(name, 0, b"session:t.1", None)])
    await producer.commit()
    await producer.stop()
    async with serving(broker):
        await eventually(lambda: len(keys) == 2, PATIENCE_S)
    assert keys == [(b"session:t.0", True), (b"session:t.1", True)]
    assert broker.skipped == {"Position": 1}


async def test_tasks_and_cancellations_are_written_where_fanout_and_the_coordinator_read_them(
    settings: Settings,
) -> None:
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    facts: list[tuple[events.Fact, int]] = []
    follower = Follower(
        settings, events.TOPIC, lambda fact, record: facts.append((fact, record.partition)), since=Since.BEGINNING
    )
    broker = polar.broker(settings, logger=None)
    tasks, cancellations = broker.publisher(polar.tasks), broker.publisher(polar.cancellations)
    stop = asyncio.Event()
    fanout = asyncio.create_task(run_fanout(settings, stop))
    await follower.start()
    try:
        async with serving(broker):
            await tasks.publish(parse({"task_id": "t1", "instruction": "x", "agent": {"harness": "pi"}}))
            for index in range(8):
                await cancellations.publish(CancelRequested(uuid4().hex, f"c{index}", f"c{index}.0"))
            with pytest.raises(InputError, match=r"a publisher of this topic takes a TaskRequest"):
                await tasks.publish("t2")  # type: ignore[arg-type]
            await eventually(lambda: len(facts) == 9, PATIENCE_S)
    finally:
        stop.set()
        await fanout
        await follower.stop()
    (submitted,) = [fact for fact, _ in facts if isinstance(fact, TaskSubmitted)]
    assert submitted.task_id == "t1"
    assert all(
        number == partition_of_task(events.task_of(fact), events.TOPIC.embedded_partitions) for fact, number in facts
    )


async def test_the_service_of_the_page_loses_nothing_when_it_is_killed(settings: Settings) -> None:
    program = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
    assert len([line for line in program.splitlines() if line]) <= 15
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    expected = [f"t{task}.{index}" for task in range(6) for index in range(10)]
    submitted: list[str] = []
    follower = Follower(
        settings, events.TOPIC, lambda fact, _: submitted.append(events.task_of(fact)), since=Since.BEGINNING
    )
    stop = asyncio.Event()
    fanout = asyncio.create_task(run_fanout(settings, stop))
    await follower.start()
    output = settings.data / "output"

    def printed() -> list[str]:
        return [line.split()[0] for line in output.read_text().splitlines() if re.match(r"\w+\.\d+ ", line)]

    try:
        async with Writer(settings) as writer:
            for task in range(6):
                await writer.write([trajectory(f"t{task}", index, 10, 1.0 if index else None) for index in range(10)])
            async with service(settings, program) as killed:
                await eventually(lambda: len(printed()) >= 20, PATIENCE_S)
                killed.kill()
                await killed.wait()
            before = printed()
            async with service(settings, program) as successor:
                await eventually(lambda: set(printed()) == set(expected), PATIENCE_S)
                await eventually(lambda: len(set(submitted)) == 6, PATIENCE_S)
                successor.terminate()
                async with asyncio.timeout(20):
                    await successor.wait()
    finally:
        stop.set()
        await fanout
        await follower.stop()
    assert 20 <= len(before) <= len(printed())
    assert len(printed()) <= len(expected) + 1  # the record in progress
    assert set(submitted) == {f"again-t{task}" for task in range(6)}


@asynccontextmanager
async def service(settings: Settings, program: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {
        "POLAR_KAFKA": settings.bootstrap,
        "POLAR_NAMESPACE": settings.namespace,
        "POLAR_DATA": str(settings.data),
    }
    with (settings.data / "output").open("ab") as written:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, env=os.environ | environment, stdout=written, stderr=written
        )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


def test_every_topic_has_a_name_with_all_its_types() -> None:
    named = {value.contract.name: value for value in vars(polar).values() if isinstance(value, polar.ReadableTopic)}
    assert set(named) == {topic.name for topic in catalogue.FIXED}
    for name, topic in named.items():
        assert set(topic.records) == set(topic.contract.records) or name in ("tasks", "dead-letters"), name
        assert topic.contract in catalogue.FIXED
        assert all(getattr(polar, record.__name__) is record for record in topic.records)
    assert polar.tasks.records == (TaskRequest,)
    assert polar.dead_letters.records == (Letter, Replay)
    assert {polar.stage(stage, "p").contract.name for stage in Stage} == {
        topic.name for topic in catalogue.of_pool("p")
    }


def test_the_page_lists_every_topic_with_its_types() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    listed = {names.strip("| "): re.findall(r"`(\w+)`", types) for names, _, types in rows}
    for value in vars(polar).values():
        if isinstance(value, polar.ReadableTopic) and value is not polar.events:
            attribute = value.contract.name.replace("-", "_").replace("trajectories.eval", "eval_trajectories")
            (types,) = [types for names, types in listed.items() if f"`{attribute}`" in names]
            assert types == [record.__name__ for record in value.records]


def test_only_what_users_may_write_has_a_publisher(offline: polar.Broker) -> None:
    writable = [value for value in vars(polar).values() if isinstance(value, polar.WritableTopic)]
    users = {right.name for right in acl.rights("submitter", "polar") if "Write" in right.operations}
    assert {value.contract.full_name("polar") for value in writable} == users
    for value in vars(polar).values():
        if isinstance(value, polar.ReadableTopic) and not isinstance(value, polar.WritableTopic):
            with pytest.raises(InputError, match=r"only .* may write it"):
                offline.publisher(value)


def test_no_group_of_a_service_is_one_of_polar_s_own() -> None:
    own = {
        right.name
        for role in acl.ROLES
        if role != "service"
        for right in acl.rights(role, "polar")
        if right.kind == "group"
    }
    assert len(own) > 5
    assert not [
        name for name in own if f"polar.{acl.SERVICES}".startswith(name) or name.startswith(f"polar.{acl.SERVICES}")
    ]


def test_a_group_has_a_name(offline: polar.Broker) -> None:
    with pytest.raises(InputError, match=r"group_id: .*needs a name"):
        offline.subscriber(polar.events, group_id="")


def test_an_annotation_that_the_topic_has_no_records_of_is_refused(offline: polar.Broker) -> None:
    async def handle(record: Trajectory | TaskRequest) -> None: ...
    async def nothing() -> None: ...

    subscriber = offline.subscriber(polar.trajectories, group_id="ours")
    with pytest.raises(InputError, match=r"handle\(record\).*records of type Trajectory, GroupFinished"):
        subscriber(handle)
    with pytest.raises(InputError, match="first parameter"):
        subscriber(nothing)


def test_a_service_that_only_reads_starts_no_producer(offline: polar.Broker) -> None:
    offline.subscriber(polar.trajectories, group_id="ours")
    for refused, error in ((polar.trajectories, InputError), (object(), Exception)):
        with pytest.raises(error):
            offline.publisher(refused)
    assert offline.config.broker_config.consumer_only
    offline.publisher(polar.tasks)
    assert not offline.config.broker_config.consumer_only


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faststream.kafka", None)
    monkeypatch.delitem(sys.modules, "polar.faststream")
    with pytest.raises(ModuleNotFoundError, match=r"polar.faststream needs FastStream: .*\[faststream\]"):
        importlib.import_module("polar.faststream")


def test_topics_of_one_s_own_are_faststream_s(offline: polar.Broker) -> None:
    assert offline.subscriber("mine").topic_names == ["mine"]
    assert offline.publisher("mine").topic == "mine"


async def test_messages_of_one_s_own_topics_keep_their_headers(offline: polar.Broker) -> None:
    got: list[Any] = []

    @offline.subscriber("mine")  # type: ignore[untyped-decorator] # FastStream's
    async def handle(body: Any, message: KafkaMessage) -> None:
        got.append((body, message.headers.get("origin"), message.correlation_id))

    async with TestKafkaBroker(offline):
        await offline.publish("text", "mine", headers={"origin": "here"}, correlation_id="c1")
    assert got == [("text", "here", "c1")]
