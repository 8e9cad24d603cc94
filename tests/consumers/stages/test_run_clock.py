"""A run's clock while the fleet is paused: a real worker on a real Kafka, its coordinator and its trainer played by the test."""

from __future__ import annotations

from tests.consumers.stages.coordinating import Coordinator, eventually, shell, ticket, working
from topics import fleet
from topics.environment.settings import Settings
from topics.events import RunFinished
from topics.fleet import FleetState
from topics.types.session import Stage, Status

BUDGET_S = 1.0
COMMAND = "sleep 2.5"


async def test_time_in_a_pause_is_not_charged_to_a_run_and_a_worker_that_starts_in_one_knows(
    settings: Settings, coordinator: Coordinator
) -> None:
    async def say(state: FleetState) -> None:
        await coordinator.log.send(fleet.TOPIC, state, key=fleet.key_of(state))

    async def run(task_id: str) -> Status:
        task = shell(task_id, COMMAND)
        runtime = await coordinator.initialised(task)
        await coordinator.granted(ticket(task, Stage.RUN, runtime=runtime, budget_s=BUDGET_S))
        return (await coordinator.fact(RunFinished, f"{task_id}.0")).status

    await say(FleetState(1, paused=True))
    async with working(settings, list(Stage)):
        assert await run("paused") is Status.COMPLETED
        assert coordinator.beats[-1].fleet_generation == 1
        await say(FleetState(2))
        await eventually(lambda: coordinator.beats[-1].fleet_generation == 2 or None)
        assert await run("running") is Status.TIMED_OUT
