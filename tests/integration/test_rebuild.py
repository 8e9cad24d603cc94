"""`polar rebuild` on a real broker: the same log, another builder, each session once however often it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.admin import RecordsToDelete
from typer.testing import CliRunner

from consumers.builder import run_builder
from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.rebuild import Wanted, rebuild
from polar.cli.app import app
from polar.settings import Settings
from polar.types.completion import Completion
from polar.types.errors import InputError
from polar.types.session import Status
from polar.types.trajectory import GroupFinished, Trajectory
from tests.consumers.builders.transcripts import Log
from topics import admin, catalogue, completions, kafka, trajectories
from topics.completions import Build, CallRecord, CloseGroup, Emitted, Open
from topics.owner import read_back
from topics.partition import partition_of_task
from topics.producer import LogProducer

DEADLINE_S = 60.0
PER_REQUEST = Wanted("again", "per_request")


@pytest.fixture
async def settings(kafka: str, namespace: str, tmp_path: Path) -> Settings:
    made = Settings(kafka=kafka, namespace=namespace, data=tmp_path, replication=1, min_insync=1)
    await admin.apply(made, catalogue.FIXED, embedded=True)
    return made


@pytest.fixture
async def log(settings: Settings) -> AsyncIterator[LogProducer]:
    producer = LogProducer(settings)
    await producer.start()
    yield producer
    await producer.stop()


async def write(log: LogProducer, key: str, *records: CallRecord) -> int:
    """The offset of the last."""
    last = 0
    for record in records:
        last = (await log.send(completions.TOPIC, record, key=key, task_id=key.partition(".")[0])).offset
    return last


def calls(session_id: str) -> list[Completion]:
    """Three turns."""
    said = Log()
    said.call(f"{session_id}-a", "sys hi", "hello")
    said.call(f"{session_id}-b", "sys hi hello tool", "ok then")
    said.call(f"{session_id}-c", "sys hi hello tool ok then more", "done")
    return [msgspec.structs.replace(call, session_id=session_id) for call in said.calls]


def build(session_id: str, output: str | None = None) -> Build:
    task_id, _, index = session_id.partition(".")
    return Build(
        session_id,
        task_id,
        int(index),
        2,
        1,
        "claim",
        Status.COMPLETED,
        "prefix_merging",
        b"{}",
        "shell",
        1.0,
        output=output,
    )


async def session(log: LogProducer, session_id: str, output: str | None = None) -> None:
    await write(log, session_id, Open(session_id, 1, "claim"), *calls(session_id), build(session_id, output))


async def finished(log: LogProducer, settings: Settings, *tasks: str, output: str | None = None) -> None:
    """Two sessions of each task, and the live builder at work until all is out."""
    for task in tasks:
        for index in range(2):
            await session(log, f"{task}.{index}", output)
        await write(log, task, CloseGroup(task, 2, [1.0, 1.0], [Status.COMPLETED] * 2, output))
    stop = asyncio.Event()
    running = asyncio.create_task(run_builder(settings, stop))
    async with asyncio.timeout(DEADLINE_S):
        while len(await told(settings, completions.TOPIC.name, Emitted)) < 3 * len(tasks):
            await asyncio.sleep(0.1)
    stop.set()
    await running


async def told(settings: Settings, topic: str, of: type[Any]) -> list[Any]:
    """All records of a type on a topic, partition by partition."""
    codec: Any = completions.CODEC if topic == completions.TOPIC.name else trajectories.CODEC
    found = []
    for partition in range(completions.TOPIC.embedded_partitions):
        async for record in read_back(settings, f"{settings.namespace}.{topic}", partition):
            decoded = codec.decode(record.value or b"")
            if isinstance(decoded, of):
                found.append(decoded)
    return found


async def rebuilt(settings: Settings, into: str = "again") -> dict[str, Trajectory]:
    found = await told(settings, trajectories.topic(into).name, Trajectory)
    assert len({one.session_id for one in found}) == len(found), "each session once"
    return {one.session_id: one for one in found}


async def test_every_session_is_built_again_by_another_builder_and_a_second_run_changes_nothing(
    settings: Settings, log: LogProducer
) -> None:
    await finished(log, settings, "t", "u")
    before = await told(settings, trajectories.TOPIC.name, object)
    done = await rebuild(settings, PER_REQUEST)
    assert (done.sessions, done.groups, done.traces, done.failed, done.tasks) == (4, 2, 12, {}, {"t", "u"})
    found = await rebuilt(settings)
    assert sorted(found) == ["t.0", "t.1", "u.0", "u.1"]
    for session_id, trajectory in found.items():
        wanted = msgspec.structs.replace(build(session_id), builder="per_request")
        straight = PerRequest().build(BuiltFrom(wanted, calls(session_id)))
        assert trajectory == msgspec.structs.replace(straight, rebuilt_with=b"{}")
    ends = await told(settings, trajectories.topic("again").name, GroupFinished)
    assert [(end.rewards, end.rebuilt) for end in ends] == [([1.0, 1.0], True)] * 2
    again = await rebuild(settings, PER_REQUEST)
    assert (again.sessions, again.were_out, again.groups) == (0, 4, 0)
    assert await rebuilt(settings) == found
    assert await told(settings, trajectories.TOPIC.name, object) == before, "the builder's own topic is as it was"


async def test_a_run_that_was_cut_short_is_taken_up_and_tasks_may_be_added(
    settings: Settings, log: LogProducer
) -> None:
    await finished(log, settings, "t", "u")
    one = await rebuild(settings, Wanted("again", "per_request", tasks=frozenset({"t", "none"})))
    assert (one.sessions, one.groups, one.tasks_missing) == (2, 1, ["none"])
    passed: list[tuple[int, int]] = []

    def cut(*far: int) -> None:
        passed.append((far[0], far[1]))
        if len(passed) > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await rebuild(settings, PER_REQUEST, cut)
    rest = await rebuild(settings, PER_REQUEST, lambda *far: passed.append(far))
    assert rest.sessions + rest.were_out == 4
    assert sorted(await rebuilt(settings)) == ["t.0", "t.1", "u.0", "u.1"]
    assert passed[-1][0] <= passed[-1][1]


async def test_what_was_built_otherwise_and_what_the_builder_writes_is_refused(
    settings: Settings, log: LogProducer
) -> None:
    await finished(log, settings, "t", output="mine")
    await rebuild(settings, PER_REQUEST)
    with pytest.raises(InputError, match=r"it holds t\.0 as built by per_request with {}; name another"):
        await rebuild(settings, Wanted("again", "per_request", b'{"rewards":"leaf"}'))
    with pytest.raises(InputError, match=r"the builder writes .*trajectories\.mine \(task t names it\)"):
        await rebuild(settings, Wanted("mine", "per_request"))
    await session(log, "w.0", "soon")
    with pytest.raises(InputError, match="it is the output of task w, which the builder writes"):
        await rebuild(settings, Wanted("soon", "per_request"))


async def test_without_a_builder_each_session_is_built_by_its_own(settings: Settings, log: LogProducer) -> None:
    await finished(log, settings, "t")
    await session(log, "v.0")
    await write(log, "v.1", Open("v.1", 1, "claim"), *calls("v.1"))
    done = await rebuild(settings, Wanted("same"))
    assert (done.sessions, done.unfinished) == (3, 1), "v.0 has its Build, v.1 has not"
    live = {one.session_id: one for one in await told(settings, trajectories.TOPIC.name, Trajectory)}
    for session_id, trajectory in (await rebuilt(settings, "same")).items():
        if session_id in live:
            assert msgspec.structs.replace(trajectory, rebuilt_with=None) == live[session_id]


async def test_sessions_whose_calls_have_left_the_log_are_told(settings: Settings, log: LogProducer) -> None:
    await session(log, "t.0")
    await write(log, "t.0", Emitted("t", "t.0"))
    await write(log, "t.1", Open("t.1", 1, "claim"), *calls("t.1")[:1])
    last = await write(log, "t.1", *calls("t.1")[1:2])
    await write(log, "t.1", *calls("t.1")[2:], build("t.1"), Emitted("t", "t.1"))
    await write(log, "t", CloseGroup("t", 2, [1.0, 1.0], [Status.COMPLETED] * 2))
    client: Any = kafka.admin(settings)
    await client.start()
    source = kafka.TopicPartition(
        completions.TOPIC.full_name(settings.namespace), partition_of_task("t", completions.TOPIC.embedded_partitions)
    )
    await client.delete_records({source: RecordsToDelete(last)})
    await client.close()
    done = await rebuild(settings, PER_REQUEST)
    assert (done.sessions, done.left_the_log, done.incomplete, done.groups) == (1, ["t.1"], {"t": 1}, 1)
    (trajectory,) = (await rebuilt(settings)).values()
    assert trajectory.error is not None
    assert (trajectory.status, trajectory.error.code, trajectory.reward) == (Status.FAILED, "log_gap", None)


async def test_the_command_says_what_it_did(
    settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kafka", "namespace", "replication", "min_insync", "data"):
        monkeypatch.setenv(f"POLAR_{name.upper()}", str(getattr(settings, name)))
    await finished(log, settings, "t")

    def polar(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["rebuild", *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    arguments = ("--into", "cli", "--builder", "per_request", "--config", '{"rewards": "leaf"}')
    code, out, _ = await asyncio.to_thread(polar, *arguments, "--task", "t", "--task", "x", "--format", "json")
    summary = json.loads(out)
    assert code == 0
    assert summary["topic"] == f"{settings.namespace}.trajectories.cli"
    assert (summary["builder"], summary["config"]) == ("per_request", {"rewards": "leaf"})
    assert (summary["sessions"], summary["traces"], summary["tasks_missing"]) == (2, 6, ["x"])
    code, out, _ = await asyncio.to_thread(polar, *arguments)
    assert code == 0
    assert out.split()[-9:] == [f"{settings.namespace}.trajectories.cli", "0", "2", "0", "0", "0", "0", "0", "0"]
