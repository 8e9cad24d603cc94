"""A FastStream service with the login that `polar up` gives its users."""

from __future__ import annotations

import asyncio

from polar import faststream as polar
from polar import load_settings
from tests.acceptance.up.running import Up

ALL_S = 60.0


async def test_a_service_reads_the_trajectories_of_a_running_system(up: Up) -> None:
    broker = polar.broker(load_settings(up.data))
    read: list[str] = []
    has_all = asyncio.Event()

    @broker.subscriber(polar.trajectories, group_id="board")
    async def on_trajectory(trajectory: polar.Trajectory) -> None:
        if trajectory.task_id.startswith(("cache-", "calc-", "intervals-")):
            read.append(trajectory.session_id)
        if len(read) == 12:
            has_all.set()

    async with broker:
        await broker.start()
        async with asyncio.timeout(ALL_S):
            await has_all.wait()
    assert len(set(read)) == 12
