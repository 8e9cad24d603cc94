"""Requests of NeMo Gym that wait for a session: whose deadline ends it, and which ends are seen."""

from __future__ import annotations

import asyncio

import pytest

from polar.nemo_gym.rollouts import Rollouts
from tests.polar.coordinator import Coordinator, task
from topics.environment.settings import Settings
from topics.types.errors import InputError

DEADLINE_S = 120.0
SHORT_S = 2.0


def due(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_only_the_last_request_s_deadline_cancels_a_session(settings: Settings, coordinator: Coordinator) -> None:
    """The first is of a client that has disconnected, and asks again by the second."""
    request = task("r1-3-0", 1)
    async with Rollouts(settings) as rollouts:
        await coordinator.show(request)
        first = asyncio.create_task(rollouts.run(request, due(SHORT_S)))
        second = asyncio.create_task(rollouts.run(request, due(DEADLINE_S)))
        with pytest.raises(TimeoutError, match="another request waits for it"):
            await first
        assert await coordinator.cancels_of("r1-3-0") == 0
        await coordinator.build("r1-3-0.0", reward=0.5)
        await coordinator.end(request, 0)
        assert (await second).reward == 0.5
        late = task("r1-4-0", 1)
        await coordinator.show(late)
        with pytest.raises(TimeoutError, match="r1-4-0 didn't end by the deadline, and is cancelled"):
            await rollouts.run(late, due(SHORT_S))
    assert [await coordinator.cancels_of(task_id) for task_id in ("r1-3-0", "r1-4-0")] == [0, 1]


async def test_a_session_whose_end_another_process_has_seen_is_found(
    settings: Settings, coordinator: Coordinator
) -> None:
    async with Rollouts(settings) as rollouts:
        with pytest.raises(InputError, match="no session of this system that has ended"):
            await rollouts.ended("nobody.0", due(DEADLINE_S))
        for number in range(5):
            request = task(f"r1-{number}-0", 1)
            await coordinator.show(request)
            await coordinator.build(f"r1-{number}-0.0", reward=0.5)
            await coordinator.end(request, 0)
            assert (await rollouts.ended(f"r1-{number}-0.0", due(DEADLINE_S))).reward == 0.5
