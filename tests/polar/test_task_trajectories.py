"""What a client gets of the tasks that it names: their trajectories, each once, or the reason why there is none."""

from __future__ import annotations

import asyncio

import pytest

from polar import task_trajectories
from polar.client import Client
from polar.table import TaskRefusedError
from tests.polar.coordinator import Coordinator, task
from topics.environment.settings import Settings
from topics.types.errors import InputError, NotReadyError
from topics.types.task import TaskRequest
from topics.types.trajectory import Trajectory

WAIT_S = 20.0


async def got(client: Client, *tasks: TaskRequest | str, deadline_s: float = WAIT_S) -> list[str]:
    return [one.session_id async for one in client.trajectories(tasks, deadline_s=deadline_s)]


async def next_of(found: object) -> str:
    async with asyncio.timeout(WAIT_S):
        one = await anext(found)  # type: ignore[call-overload]
        assert isinstance(one, Trajectory)
        return one.session_id


@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_each_sample_comes_once_whether_it_ended_before_or_ends_later(
    settings: Settings, coordinator: Coordinator, mode: str
) -> None:
    wanted, other = task("wanted", 2, mode=mode), task("other", 1, mode=mode)
    for each in (wanted, other):
        await coordinator.show(each)
        await coordinator.build(f"{each.task_id}.0", each.output)
        await coordinator.end(each, 0)
    found = Client(settings).trajectories(wanted, deadline_s=WAIT_S)
    assert await next_of(found) == "wanted.0"
    await coordinator.build("wanted.0", wanted.output)  # as `polar rebuild` does
    await coordinator.build("wanted.1", wanted.output)
    assert await next_of(found) == "wanted.1"
    await coordinator.end(wanted, 1)
    assert [one async for one in found] == []
    assert sorted(await got(Client(settings), "wanted", "other")) == ["other.0", "wanted.0", "wanted.1"]


async def test_a_client_that_is_open_submits_without_a_table_and_knows_earlier_refusals(
    settings: Settings, coordinator: Coordinator
) -> None:
    good, bad = task("good", 1), task("bad", 1)
    async with Client(settings) as client:
        submitting = asyncio.create_task(client.submit([good, bad.model_dump()], answer_s=WAIT_S))
        await coordinator.show(good)
        while not submitting.done():  # it may not have been sent yet
            await coordinator.refuse(bad)
            await asyncio.wait({submitting}, timeout=0.2)
        with pytest.raises(TaskRefusedError, match=r"^bad: fanout refused it"):
            submitting.result()
        found = client.trajectories([good, bad], deadline_s=WAIT_S)
        await coordinator.build("good.0")
        await coordinator.end(good, 0)
        assert await next_of(found) == "good.0"
        with pytest.raises(TaskRefusedError, match=r"^bad: fanout refused it"):
            await next_of(found)
        assert await client.submit(good) == [], "the same task again"


async def test_a_refusal_after_the_call_ends_the_wait(settings: Settings, coordinator: Coordinator) -> None:
    bad = task("bad", 1)
    found = Client(settings).trajectories(bad, deadline_s=WAIT_S)
    waiting = asyncio.create_task(next_of(found))
    while not waiting.done():  # a client without `async with` learns of refusals that are written from then on
        await coordinator.refuse(bad)
        await asyncio.wait({waiting}, timeout=0.2)
    with pytest.raises(TaskRefusedError, match=r"^bad: fanout refused it"):
        waiting.result()


async def test_what_never_comes_is_an_error_that_names_it(
    settings: Settings, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_trajectories, "SHOWN_S", 0.3)
    late, gone, used = task("late", 2), task("gone", 1), task("used", 1)
    for each in (late, gone, used):
        await coordinator.show(each)
    await coordinator.end(gone, 0)
    client = Client(settings)
    with pytest.raises(NotReadyError, match=r"^nosuch: no coordinator has shown the task within 0 s"):
        await got(client, "nosuch")
    with pytest.raises(
        TimeoutError, match=r"^the deadline passed before the trajectories of late\.0, late\.1; the tasks go"
    ):
        await got(client, late, deadline_s=2.0)
    with pytest.raises(NotReadyError, match=r"^gone\.0: ended, but the trajectories have left their topic"):
        await got(client, gone)
    with pytest.raises(InputError, match="task_id: already used with another body"):
        await got(client, task("used", 7))


async def test_a_loop_that_is_left_early_leaves_nothing_running(settings: Settings, coordinator: Coordinator) -> None:
    wanted = task("wanted", 2)
    await coordinator.show(wanted)
    await coordinator.build("wanted.0")
    before = asyncio.all_tasks()
    found = Client(settings).trajectories("wanted")
    assert await next_of(found) == "wanted.0"
    await found.aclose()
    assert asyncio.all_tasks() == before


async def test_invalid_tasks_are_named_by_their_place(settings: Settings) -> None:
    client = Client(settings)
    with pytest.raises(InputError, match=r"^tasks\.1\.instruction: "):
        await client.submit([task("a", 1), {"task_id": "b"}])
    with pytest.raises(InputError, match=r"^instruction: "):
        await client.submit({"task_id": "b"})
    with pytest.raises(InputError, match="another body of this submission has the same id"):
        await client.submit([task("a", 1), task("a", 2)])
