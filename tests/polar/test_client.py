"""What programs that submit rely on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polar.client import Client
from polar.table import TaskRefusedError
from polar.uploads import Uploads
from tests.polar.coordinator import PLAN, Coordinator, task
from topics import events
from topics.contract import catalogue
from topics.contract.codec import encode
from topics.environment.blobs import FolderBlobs
from topics.environment.settings import Settings
from topics.log import admin
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Stage
from topics.types.task import TaskRequest, body_hash, parse


@pytest.fixture
def no_kafka() -> Settings:
    """Settings of a broker that isn't there: the port was free a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return Settings(kafka=f"127.0.0.1:{free.getsockname()[1]}")


async def test_who_waits_is_told_when_kafka_is_gone_for_good(no_kafka: Settings) -> None:
    was_cancelled = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    with pytest.raises(NotReadyError, match="has been away for"):
        await Client(no_kafka).unless_gone(wait(), gone_s=0.2)
    assert was_cancelled.is_set()


async def test_what_ends_in_time_ends_as_it_would_alone(no_kafka: Settings) -> None:
    async def fail() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await Client(no_kafka).unless_gone(fail(), gone_s=5)


# --- feeding -------------------------------------------------------------------------------------------------------------------


async def one_by_one(*requests: TaskRequest) -> AsyncIterator[TaskRequest]:
    for request in requests:
        yield request


async def test_a_feed_keeps_so_many_sessions_unfinished_and_no_more(
    settings: Settings, coordinator: Coordinator
) -> None:
    """Tasks of 2, 2, 1 and 3 sessions with 4 in flight; the first of them was finished long ago."""
    old, a, b, c, d = (task(name, samples) for name, samples in zip("oabcd", (4, 2, 2, 1, 3), strict=True))
    await coordinator.show(old)
    await coordinator.end(old, 0, 1, 2, 3)
    sent: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def next_sent() -> tuple[str, int]:
        async with asyncio.timeout(20):
            return await sent.get()

    client = Client(settings)
    async with client.table() as table:
        feeding = asyncio.create_task(
            client.feed(
                one_by_one(old, a, b, c, d),
                table,
                max_in_flight=4,
                on_sent=lambda request, unfinished: sent.put_nowait((request.task_id, unfinished)),
            ),
            name="feed",
        )
        assert [await next_sent() for _ in range(3)] == [("o", 0), ("a", 2), ("b", 4)]
        await coordinator.show(a)
        await coordinator.show(b)
        assert not feeding.done()
        await coordinator.end(b, 1)
        assert await next_sent() == ("c", 4)
        await coordinator.end(a, 0, 1)
        await coordinator.show(c)
        assert sent.empty()
        await coordinator.end(c, 0)
        assert await next_sent() == ("d", 4)
        await coordinator.show(d)
        async with asyncio.timeout(20):
            await feeding


async def test_a_task_larger_than_what_may_be_in_flight_is_refused(settings: Settings) -> None:
    sent: list[str] = []
    client = Client(settings)
    async with client.table() as table:
        with pytest.raises(InputError, match="large: num_samples: more than 4 sessions in flight; allow more"):
            await client.feed(
                one_by_one(task("small", 4), task("large", 5)),
                table,
                max_in_flight=4,
                on_sent=lambda request, _: sent.append(request.task_id),
            )
        assert sent == ["small"]


# --- uploads -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["submit", "feed"])
async def test_the_files_of_a_task_are_stored_and_its_body_has_their_references(
    settings: Settings, coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("print(1)")
    upload = {"type": "upload_file", "source": "agent.py", "target": "."}
    written = parse(task("t", 1).model_dump() | {"runtime": {"prepare": [upload]}})
    complete = Uploads(FolderBlobs(tmp_path / "elsewhere")).with_content(written, tmp_path)
    (content,) = (action.content for action in complete.runtime.prepare)
    assert content is not None
    client = Client(settings.model_copy(update={"blobs": str(tmp_path / "blobs")}))
    async with client.table({"t"}) as table:
        await coordinator.show(complete)
        await coordinator.end(complete, 0)
        # Another body of this id would be refused.
        if way == "submit":
            assert await client.submit([written], table, answer_s=20.0) == []
        else:
            sent: list[TaskRequest] = []
            await client.feed(one_by_one(written), table, max_in_flight=1, on_sent=lambda one, _: sent.append(one))
            assert sent == [complete]
    assert len(FolderBlobs(tmp_path / "blobs").get(content.ref)) == content.size


# --- refusals ------------------------------------------------------------------------------------------------------------------


async def test_who_submits_is_told_which_tasks_are_refused_and_the_others_go_on(
    settings: Settings, coordinator: Coordinator
) -> None:
    good, bad, slow = task("good", 1), task("bad", 1), task("slow", 1)
    client = Client(settings)
    async with client.table({"good", "bad", "slow"}) as table:
        submitting = asyncio.create_task(client.submit([good, bad, slow], table, answer_s=5.0))
        await coordinator.show(good)
        await coordinator.refuse(bad)
        with pytest.raises(TaskRefusedError) as refused:
            await submitting
        assert str(refused.value) == "bad: fanout refused it: agent.harness: no such harness (got 'mine')"
        assert refused.value.unanswered == ["slow"]
        assert (table.is_over("bad"), table.is_finished("bad"), table.is_over("good")) == (True, False, False)
        await coordinator.refuse(slow)
        assert await table.until(lambda: table.is_over("slow"), 20), "also when the answer comes late"


async def test_a_coordinator_refuses_an_id_that_is_used_and_another_body_s_refusal_is_not_ours(
    settings: Settings, coordinator: Coordinator
) -> None:
    own, other = task("t", 1), task("t", 2)

    def fact(request: TaskRequest) -> bytes:
        return encode(events.TaskSubmitted("f", "t", 1, body_hash(request.canonical()), PLAN))

    client = Client(settings)
    async with client.table({"t"}) as table:
        submitting = asyncio.create_task(client.submit([own], table, answer_s=20.0))
        await coordinator.refuse(other)
        await coordinator.refuse(other, events.TOPIC, fact(other))
        await coordinator.refuse(own, events.TOPIC, b"\xff")
        await coordinator.refuse(own, events.TOPIC, fact(own))
        with pytest.raises(TaskRefusedError) as refused:
            await submitting
    (refusal,) = refused.value.refusals
    assert refusal.letter_id == 3


async def test_a_feed_ends_with_the_first_task_that_is_refused(settings: Settings, coordinator: Coordinator) -> None:
    """Otherwise its sessions would stay in flight for ever."""
    first, bad, last = task("first", 2), task("bad", 2), task("last", 1)
    sent: asyncio.Queue[str] = asyncio.Queue()
    client = Client(settings)
    async with client.table() as table:
        feeding = asyncio.create_task(
            client.feed(
                one_by_one(first, bad, last),
                table,
                max_in_flight=4,
                on_sent=lambda request, _: sent.put_nowait(request.task_id),
            )
        )
        async with asyncio.timeout(20):
            assert [await sent.get(), await sent.get()] == ["first", "bad"]
            await coordinator.refuse(bad)
            with pytest.raises(TaskRefusedError, match="bad: fanout refused it"):
                await feeding
    assert sent.empty()


async def test_a_feed_that_does_not_stop_at_a_refusal_gives_the_refused_task_s_place_to_the_next(
    settings: Settings, coordinator: Coordinator
) -> None:
    bad, last = task("bad", 2), task("last", 2)
    sent: asyncio.Queue[str] = asyncio.Queue()
    client = Client(settings)
    async with client.table() as table:
        feeding = asyncio.create_task(
            client.feed(
                one_by_one(bad, last),
                table,
                max_in_flight=2,
                on_sent=lambda request, _: sent.put_nowait(request.task_id),
                stop_at_refusal=False,
            )
        )
        async with asyncio.timeout(20):
            assert await sent.get() == "bad"
            await coordinator.refuse(bad)
            assert await sent.get() == "last"
            await coordinator.show(last)
            await feeding
        assert list(table.refusals) == ["bad"]


async def test_a_pool_is_served_by_live_workers_that_stay(settings: Settings, coordinator: Coordinator) -> None:
    client = Client(settings)
    assert await client.unserved({"default"}) == {"default": list(Stage)}
    await coordinator.beat("a", Stage.INIT, Stage.RUN)
    await coordinator.beat("b", Stage.EVALUATE)
    await coordinator.beat("c", Stage.RUN, pool="gpu")
    assert await client.unserved({"default", "gpu"}) == {"gpu": [Stage.INIT, Stage.EVALUATE]}
    await coordinator.beat("b", Stage.EVALUATE, leaving=True)
    assert await client.unserved({"default"}) == {"default": [Stage.EVALUATE]}


async def test_a_table_whose_end_is_cancelled_leaves_nothing_running(settings: Settings) -> None:
    """A feed's end cancels its task, which may be leaving the table just then."""
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    before = asyncio.all_tasks()
    for steps in range(1, 9):
        table = await Client(settings).table().__aenter__()
        ending = asyncio.create_task(table.__aexit__())
        for _ in range(steps):
            await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait({ending})
        assert asyncio.all_tasks() == before, f"cancelled after {steps} steps"
