"""`polar rebuild` on a real broker: the same log, another builder, each session once however often it runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from consumers.builders.base import BuiltFrom
from consumers.builders.per_request import PerRequest
from consumers.rebuild import run
from consumers.rebuild.request import RebuildReport, RebuildRequest
from consumers.rebuild.run import rebuild
from polar.cli.app import app
from tests.consumers.token_tree.transcripts import Log
from tests.integration.conftest import building, expire, records_of
from tests.waiting import eventually
from topics import completions, trajectories
from topics.completions import Build, CallRecord, CloseGroup, Emitted, Open
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.types.completion import Completion
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Status
from topics.types.trajectory import GroupFinished, Trajectory

DEADLINE_S = 60.0
PER_REQUEST = RebuildRequest("again", "per_request")


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
        session_id, task_id, int(index), 2, 1, "claim", Status.COMPLETED, "prefix_merging", b"{}", "shell", 1.0, output=output, run="night",
    )  # fmt: skip


async def session(log: LogProducer, session_id: str, output: str | None = None) -> None:
    await write(log, session_id, Open(session_id, 1, "claim"), *calls(session_id), build(session_id, output))


async def finished(log: LogProducer, settings: Settings, *tasks: str, output: str | None = None) -> None:
    """Two sessions of each task, and the live builder at work until all is out."""
    for task in tasks:
        for index in range(2):
            await session(log, f"{task}.{index}", output)
        await write(log, task, CloseGroup(task, 2, [1.0, 1.0], [Status.COMPLETED] * 2, output, run="night"))

    async def all_out() -> bool:
        return len(await records_of(settings, completions.TOPIC, Emitted)) >= 3 * len(tasks)

    async with building(settings):
        await eventually(all_out, DEADLINE_S, every_s=0.1)


async def rebuilt(settings: Settings, into: str = "again") -> dict[str, Trajectory]:
    found = await records_of(settings, trajectories.topic(into), Trajectory)
    assert len({one.session_id for one in found}) == len(found), "each session once"
    return {one.session_id: one for one in found}


async def test_every_session_is_built_again_by_another_builder_and_a_second_run_changes_nothing(
    settings: Settings, log: LogProducer
) -> None:
    await finished(log, settings, "t", "u")
    before = await records_of(settings, trajectories.TOPIC)
    done = await rebuild(settings, PER_REQUEST)
    assert (done.sessions, done.groups, done.traces, done.failed, done.tasks) == (4, 2, 12, {}, {"t", "u"})
    found = await rebuilt(settings)
    assert sorted(found) == ["t.0", "t.1", "u.0", "u.1"]
    for session_id, trajectory in found.items():
        wanted = msgspec.structs.replace(build(session_id), builder="per_request")
        straight = PerRequest().build(BuiltFrom(wanted, calls(session_id)))
        assert trajectory == msgspec.structs.replace(straight, rebuilt_with=b"{}")
    ends = await records_of(settings, trajectories.topic("again"), GroupFinished)
    assert [(end.rewards, end.rebuilt, end.run) for end in ends] == [([1.0, 1.0], True, "night")] * 2
    live = await records_of(settings, trajectories.TOPIC)
    assert {one.run for one in [*found.values(), *live]} == {"night"}
    again = await rebuild(settings, PER_REQUEST)
    assert (again.sessions, again.were_out, again.groups) == (0, 4, 0)
    assert await rebuilt(settings) == found
    assert await records_of(settings, trajectories.TOPIC) == before, "the builder's own topic is as it was"


@pytest.mark.hard
async def test_a_run_that_was_cut_short_is_taken_up(
    settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.rebuild.partition.TRANSACTION_SESSIONS", 1)
    await finished(log, settings, "t", "u")
    closed = 2 * len([Open, *calls("t.0"), Build]) + len([CloseGroup])
    written = 0

    def cut(passed: int, total: int) -> None:
        """After the first task's sessions, before its group's end."""
        nonlocal written
        written += passed > total // 2  # the first half is looked through
        if written > closed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await rebuild(settings, PER_REQUEST, cut)
    passed: list[tuple[int, int]] = []
    rest = await rebuild(settings, PER_REQUEST, lambda *far: passed.append(far))
    assert (rest.sessions, rest.were_out, rest.groups) == (2, 2, 2)
    assert sorted(await rebuilt(settings)) == ["t.0", "t.1", "u.0", "u.1"]
    ends = await records_of(settings, trajectories.topic("again"), GroupFinished)
    assert sorted(end.task_id for end in ends) == ["t", "u"]
    assert passed == sorted(passed)
    assert passed[-1][0] <= passed[-1][1]


@pytest.mark.hard
async def test_tasks_may_be_added(settings: Settings, log: LogProducer) -> None:
    await finished(log, settings, "t", "u")
    nothing = await rebuild(settings, RebuildRequest("again", "per_request", tasks=frozenset({"none"})))
    assert (nothing.sessions, nothing.tasks_missing) == (0, ["none"])
    output = trajectories.topic("again").full_name(settings.namespace)
    assert output not in {each.name for each in await admin.listing(settings)}, "nothing was made for it"
    one = await rebuild(settings, RebuildRequest("again", "per_request", tasks=frozenset({"t", "none"})))
    assert (one.sessions, one.groups, one.tasks_missing) == (2, 1, ["none"])
    rest = await rebuild(settings, PER_REQUEST)
    assert (rest.sessions, rest.were_out, rest.groups) == (2, 2, 1)
    assert sorted(await rebuilt(settings)) == ["t.0", "t.1", "u.0", "u.1"]


@pytest.mark.hard
async def test_two_runs_at_once_into_one_topic_write_each_session_once(settings: Settings, log: LogProducer) -> None:
    await finished(log, settings, "t", "u")
    both = await asyncio.gather(*(rebuild(settings, PER_REQUEST) for _ in range(2)), return_exceptions=True)
    for one in both:
        assert isinstance(one, (RebuildReport, NotReadyError)), one
    last = await rebuild(settings, PER_REQUEST)
    assert last.sessions + last.were_out == 4
    assert sorted(await rebuilt(settings)) == ["t.0", "t.1", "u.0", "u.1"]


@pytest.mark.hard
async def test_nothing_is_written_before_all_is_known_that_would_be_refused(
    settings: Settings, log: LogProducer
) -> None:
    early, late = "a", "u"
    partitions = completions.TOPIC.embedded_partitions
    assert partition_of_task(early, partitions) < partition_of_task(late, partitions)
    await finished(log, settings, "t", output="live")
    with pytest.raises(InputError, match="it is the output of task t, which the builder writes"):
        await rebuild(settings, RebuildRequest("live", "per_request"))
    await session(log, f"{early}.0")
    await session(log, f"{late}.0", "mine")
    for tasks in (frozenset[str](), frozenset({early})):
        with pytest.raises(InputError, match=f"it is the output of task {late}, which the builder writes"):
            await rebuild(settings, RebuildRequest("mine", "per_request", tasks=tasks))
    with pytest.raises(NotReadyError, match="has no topic"):
        await admin.partition_count(settings, trajectories.topic("mine").full_name(settings.namespace))
    await rebuild(settings, RebuildRequest("again", "per_request", tasks=frozenset({late})))
    otherwise = [
        RebuildRequest("again", "per_request", b'{"rewards":"leaf"}'),
        RebuildRequest("again", "per_request", b'{"rewards":"leaf"}', frozenset({early})),
        RebuildRequest("again"),
    ]
    for wanted in otherwise:
        with pytest.raises(InputError, match=rf"it holds {late}\.0 as built by per_request with {{}}; name another"):
            await rebuild(settings, wanted)
        assert sorted(await rebuilt(settings)) == [f"{late}.0"]


class Unwell:
    """A builder that has to be mended."""

    mended = False

    def build(self, session: BuiltFrom) -> Trajectory:
        if not self.mended and session.build.session_id == "t.1":
            raise RuntimeError("no such luck")
        return PerRequest().build(session)


@pytest.mark.hard
async def test_what_a_builder_failed_on_is_built_when_the_builder_is_mended(
    settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await finished(log, settings, "t")
    wanted = RebuildRequest("again", f"{__name__}:Unwell")
    for sessions in (1, 0):
        done = await rebuild(settings, wanted)
        assert (done.sessions, done.groups, done.incomplete) == (sessions, 0, {})
        assert done.failed == {"t.1": "builder: RuntimeError: no such luck"}
        assert sorted(await rebuilt(settings)) == ["t.0"]
    monkeypatch.setattr(Unwell, "mended", True)
    done = await rebuild(settings, wanted)
    assert (done.sessions, done.were_out, done.groups, done.failed) == (1, 1, 1, {})
    assert {one.builder for one in (await rebuilt(settings)).values()} == {wanted.builder}


@pytest.mark.hard
async def test_without_a_builder_each_session_is_built_by_its_own(settings: Settings, log: LogProducer) -> None:
    await finished(log, settings, "t")
    await session(log, "v.0")
    await write(log, "v.1", Open("v.1", 1, "claim"), *calls("v.1"))
    done = await rebuild(settings, RebuildRequest("same"))
    assert (done.sessions, done.unfinished) == (3, 1), "v.0 has its Build, v.1 has not"
    live = {one.session_id: one for one in await records_of(settings, trajectories.TOPIC, Trajectory)}
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
    await expire(settings, last)
    for sessions in (1, 0):
        done = await rebuild(settings, PER_REQUEST)
        assert (done.sessions, done.groups) == (sessions, sessions)
        assert (list(done.failed), done.left_the_log, done.incomplete) == (["t.1"], ["t.1"], {"t": 1})
    (trajectory,) = (await rebuilt(settings)).values()
    assert trajectory.error is not None
    assert (trajectory.status, trajectory.error.code, trajectory.reward) == (Status.FAILED, "log_gap", None)


@pytest.mark.hard
async def test_a_log_that_is_cut_between_looking_and_building_ends_the_run(
    settings: Settings, log: LogProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session without its beginning would pass for one that never was, and its group end without it."""
    await finished(log, settings, "t", "u")
    look = run._make_output

    async def look_and_cut(*arguments: Any) -> None:
        await look(*arguments)
        await expire(settings, 1)

    with monkeypatch.context() as patched:
        patched.setattr(run, "_make_output", look_and_cut)
        with pytest.raises(NotReadyError, match="has left it; the same command goes on from here"):
            await rebuild(settings, PER_REQUEST)
    done = await rebuild(settings, PER_REQUEST)
    assert (done.left_the_log, done.groups) == (["t.0"], 2)


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

    _, _, unwell = await asyncio.to_thread(polar, "--into", "unwell", "--builder", f"{__name__}:Unwell")
    assert "t.1 FAILED: builder: RuntimeError: no such luck" in unwell
    assert "1 sessions and the ends of their groups aren't written" in unwell

    arguments = ("--into", "cli", "--builder", "per_request", "--config", '{"rewards": "leaf"}')
    code, out, _ = await asyncio.to_thread(polar, *arguments, "--task", "t", "--task", "x", "--format", "json")
    summary = json.loads(out)
    assert code == 1, "x is no task's"
    assert summary["topic"] == f"{settings.namespace}.trajectories.cli"
    assert (summary["builder"], summary["config"]) == ("per_request", {"rewards": "leaf"})
    assert (summary["sessions"], summary["traces"], summary["tasks_missing"]) == (2, 6, ["x"])
    code, out, _ = await asyncio.to_thread(polar, *arguments)
    assert code == 0
    assert out.split()[-9:] == [f"{settings.namespace}.trajectories.cli", "0", "2", "0", "0", "0", "0", "0", "0"]
