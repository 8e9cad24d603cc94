"""From a group's end to its `callback_url`: the builder and the webhooks worker, on a real broker."""

from __future__ import annotations

import asyncio

from consumers.building.builder import run_builder
from consumers.webhooks.worker import run_webhooks
from tests.consumers.stages.coordinating import PATIENCE_S
from tests.consumers.webhooks.endpoint import receiving
from tests.waiting import eventually
from topics import completions, trajectories
from topics.completions import CloseGroup
from topics.environment import webhook_signing as signing
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.producer import LogProducer
from topics.types.session import Status
from topics.types.trajectory import GroupFinished


async def test_a_group_that_ends_is_told_wherever_its_trajectories_go_and_only_where_a_task_asks(
    settings: Settings, namespace: str, log: LogProducer
) -> None:
    signing.ensure_secret_file(settings.webhook_secret_path)
    (secret,) = signing.read_secrets(settings.webhook_secret_path)
    mine = trajectories.topic("mine")
    await admin.apply(settings, [mine], embedded=True)
    groups: list[GroupFinished] = []
    follower = Follower(settings, mine, lambda record, _: groups.append(record), since=Since.BEGINNING, committed=True)
    stop = asyncio.Event()
    await follower.start()
    running = [asyncio.create_task(run_builder(settings, stop)), asyncio.create_task(run_webhooks(settings, stop))]
    try:
        async with receiving() as endpoint:
            for task_id, output, url in [
                ("quiet", "mine", None),
                ("named", "mine", f"{endpoint.url}/groups"),
                ("judged", "eval", f"{endpoint.url}/groups"),
                ("plain", None, f"{endpoint.url}/groups"),
            ]:
                group = CloseGroup(task_id, 1, [1.0], [Status.COMPLETED], output, url)
                await log.send(completions.TOPIC, group, key=task_id, task_id=task_id)
            await eventually(lambda: len(endpoint.calls) == 3, PATIENCE_S)
            told = {call.verified(secret)["data"]["task_id"]: call.verified(secret)["data"] for call in endpoint.calls}
            await eventually(lambda: len(groups) == 2, PATIENCE_S)
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*running)
        await follower.stop()
    assert {task: data["output_topic"] for task, data in told.items()} == {
        "named": f"{namespace}.trajectories.mine",
        "judged": f"{namespace}.trajectories.eval",
        "plain": f"{namespace}.trajectories",
    }
    named = next(group for group in groups if group.task_id == "named")
    assert [told["named"][name] for name in ("session_ids", "rewards", "statuses", "num_samples")] == [
        named.session_ids,
        named.rewards,
        named.statuses,
        named.num_samples,
    ]
