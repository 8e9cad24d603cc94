"""A feed beside a consumer: never more in flight than was said, every group once, across a restart, too, and errors are told."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from polar.trainer import Feed, Group, TrajectoryConsumer, feeding
from tests.polar.coordinator import task
from topics.environment.settings import Settings
from topics.types.errors import InputError
from topics.types.task import TaskRequest

MAX = 4
SIZES = [2, 2, 1, 3, 4, 1, 1, 2, 1]
DEADLINE_S = 60.0
LOOK_S = 0.05


def requests() -> Iterator[TaskRequest]:
    return (task(f"t{number}", samples) for number, samples in enumerate(SIZES))


def consume(settings: Settings, states: dict[str, Any], at_most: int) -> list[tuple[str, int]]:
    """Task ids as they come, and how many sessions are in flight then; `states` is loaded, and left as it is after the last."""
    found: list[tuple[str, int]] = []
    feed = Feed(requests(), MAX, settings=settings)
    consumer = TrajectoryConsumer(settings=settings)
    if states:
        feed.load_state_dict(states["feed"])
        consumer.load_state_dict(states["consumer"])
    with consumer, feed:
        for one in consumer.groups(feed):
            state = feed.state_dict()
            found.append((one.task_id, sum(SIZES[position] for position in state["waiting"])))
            if len(found) == at_most:
                states |= json.loads(json.dumps({"feed": state, "consumer": consumer.state_dict()}))
                break
    return found


async def test_so_many_are_in_flight_and_a_restart_loses_and_doubles_none(settings: Settings, system: None) -> None:
    states: dict[str, Any] = {}
    found: list[tuple[str, int]] = []
    async with asyncio.timeout(DEADLINE_S):
        for at_most in (2, 3, len(SIZES) - 5):
            found += await asyncio.to_thread(consume, settings, states, at_most)
    assert sorted(name for name, _ in found) == [f"t{number}" for number in range(len(SIZES))]
    assert all(in_flight <= MAX for _, in_flight in found)
    assert states["feed"] == {"drawn": len(SIZES), "waiting": [], "early": []}


async def test_a_group_that_comes_before_its_task_is_read_takes_no_slot(settings: Settings, system: None) -> None:
    """An earlier process sent the task after its last checkpoint."""

    def resume() -> dict[str, Any]:
        drawn: list[str] = []

        def tasks() -> Iterator[TaskRequest]:
            for one in requests():
                drawn.append(one.task_id)
                yield one

        consumer = TrajectoryConsumer(settings=settings, timeout_s=DEADLINE_S)
        with Feed(tasks(), MAX, settings=settings) as feed, consumer:
            feed(Group("t8", []), Counter())
            assert "t8" not in drawn
            found = islice(consumer.groups(feed), len(SIZES) - 1)
            # In the order of their ends: nothing orders tasks of several partitions.
            assert sorted(one.task_id for one in found) == [f"t{number}" for number in range(len(SIZES) - 1)]
            ends = time.monotonic() + DEADLINE_S
            while (state := feed.state_dict())["drawn"] < len(SIZES) and time.monotonic() < ends:
                time.sleep(LOOK_S)
            return state

    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.to_thread(resume) == {"drawn": len(SIZES), "waiting": [], "early": []}


async def test_the_newest_early_groups_are_remembered(
    settings: Settings, system: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "EARLY", 2)

    def early() -> Any:
        with Feed(requests(), MAX, settings=settings) as feed:
            for name in ("other-1", "other-2", "other-3"):
                feed(Group(name, []), Counter())
            return feed.state_dict()["early"]

    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.to_thread(early) == ["other-2", "other-3"]


async def test_a_task_that_can_t_be_is_an_error_at_the_start(settings: Settings, system: None) -> None:
    def enter() -> None:
        with Feed([task("large", MAX + 1)], MAX, settings=settings):
            pass

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(InputError, match="large: num_samples: more than 4 sessions in flight"):
            await asyncio.to_thread(enter)


async def test_what_ends_the_sending_ends_the_waiting_for_groups(settings: Settings, system: None) -> None:
    def enter() -> None:
        with (
            TrajectoryConsumer(settings=settings) as consumer,
            Feed([task("a", 2), task("large", 5)], MAX, settings=settings) as feed,
        ):
            for _ in consumer.groups(feed):
                pass

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(InputError, match="large: num_samples"):
            await asyncio.to_thread(enter)


def test_a_bound_or_a_state_that_can_t_be_is_refused(settings: Settings) -> None:
    with pytest.raises(InputError, match="max_in_flight: must be 1 or more sessions"):
        Feed([], 0, settings=settings)
    with pytest.raises(InputError, match=r"state: not a feed's state_dict\(\)"):
        Feed([], 1, settings=settings).load_state_dict({"drawn": "all"})
    with pytest.raises(RuntimeError, match="inside `with Feed"):
        Feed([], 1, settings=settings)(Group("t", []), Counter())
