"""The rows that TRL's asynchronous trainer gets from the log: each once, across a process that is killed, and none that is too old."""

from __future__ import annotations

import asyncio
import json
import queue
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import cycle
from typing import Any

import pytest

from polar.trainer.prompt_tasks import PromptTasks
from polar.trainer.trl_samples import Plan, SampleQueue
from tests.polar.coordinator import Coordinator
from tests.polar.trainer.conftest import work
from tests.polar.trainer.writing import RunWriter
from topics.contract import catalogue
from topics.environment.settings import Settings
from topics.fleet import Publication
from topics.log import admin
from topics.log.producer import LogProducer

Row = tuple[int, int]
"""The numbers of a row's group and of its sample."""
DEADLINE_S = 120.0
ROW_S = 60.0
SAMPLED_BY = 7
SAMPLES = 3


@pytest.fixture
async def sampling(settings: Settings) -> AsyncIterator[None]:
    await admin.apply(settings, catalogue.FIXED, embedded=True)
    producer = LogProducer(settings)
    await producer.start()
    async with RunWriter(settings, "r1", SAMPLED_BY) as writer:
        running = asyncio.create_task(work(settings, Coordinator(settings, producer), writer), name="system")
        yield
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await producer.stop()


def task(prompt: str) -> dict[str, Any]:
    return {"instruction": prompt, "agent": {"harness": "shell", "custom_shell": {"command": "true"}}}


def samples_of(
    settings: Settings, version: int, reports: Counter[str], longest: Callable[[], int] = lambda: 0
) -> SampleQueue:
    plan = Plan(PromptTasks(task, run="r1"), ["a", "b"], SAMPLES, 1.0)
    return SampleQueue(
        settings,
        plan,
        lambda: Publication(version, 0),
        max_in_flight=4 * SAMPLES,
        max_staleness=1,
        longest=longest,
        report=reports.update,
    )


async def test_a_killed_process_trains_each_row_once(settings: Settings, sampling: None) -> None:
    """It is killed with rows read ahead, and its checkpoint lies in the middle of a group."""

    def process(state: dict[str, Any] | None, before: list[Row], ahead: int) -> tuple[list[Row], dict[str, Any]]:
        """Train 7 rows in the first process, and all rows of the groups that were begun in the second."""
        samples = samples_of(settings, SAMPLED_BY, Counter())
        if state is not None:
            samples.load_state_dict(state)
        samples.start()
        trained: list[Row] = []
        try:
            while len(trained) < 2 * SAMPLES + 1 if state is None else not are_whole([*before, *trained]):
                row = samples.get(ROW_S)
                samples.batched([row.group_id])
                samples.trained()
                trained.append((row.group_id, int(row.input_ids[-1])))
            for _ in range(ahead):
                samples.batched([samples.get(ROW_S).group_id])
            return trained, samples.state_dict()
        finally:
            samples.stop()

    def are_whole(rows: list[Row]) -> bool:
        return set(Counter(number for number, _ in rows).values()) == {SAMPLES}

    async with asyncio.timeout(DEADLINE_S):
        first, state = await asyncio.to_thread(process, None, [], SAMPLES)
        assert list(state["partial"].values()) == [1]
        second, state = await asyncio.to_thread(process, json.loads(json.dumps(state)), first, 0)
    assert are_whole([*first, *second])
    assert len({*first, *second}) == len([*first, *second])
    assert state["groups"] == len({number for number, _ in [*first, *second]})


async def test_a_row_left_out_of_the_middle_of_a_group_is_passed(settings: Settings, sampling: None) -> None:
    """The second row of each group is too long. Otherwise a process that resumes would train the third row again."""
    rows = cycle([0, 4, 0])

    def process() -> tuple[list[int], dict[str, Any]]:
        samples = samples_of(settings, SAMPLED_BY, Counter(), lambda: next(rows))
        samples.start()
        try:
            trained = [samples.get(ROW_S) for _ in range(2)]
            samples.batched([row.group_id for row in trained])
            samples.trained()
            return [int(row.input_ids[-1]) for row in trained], samples.state_dict()
        finally:
            samples.stop()

    async with asyncio.timeout(DEADLINE_S):
        trained, state = await asyncio.to_thread(process)
    assert trained == [0, 2]
    assert (state["partial"], state["groups"]) == ({}, 1)


@pytest.mark.parametrize(
    ("version", "longest", "reason"),
    [(SAMPLED_BY + 2, 0, "stale_group"), (SAMPLED_BY - 1, 0, "newer_group"), (SAMPLED_BY, 4, "too_long_sample")],
)
async def test_rows_that_are_left_out_are_counted(
    settings: Settings, sampling: None, version: int, longest: int, reason: str
) -> None:
    reports: Counter[str] = Counter()

    def read() -> None:
        samples = samples_of(settings, version, reports, lambda: longest)
        samples.start()
        try:
            while not reports:
                with pytest.raises(queue.Empty):
                    samples.get(0.1)
        finally:
            samples.stop()

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.to_thread(read)
    assert set(reports) == {f"polar/{reason}_total"}
