"""Tasks handed in, and their groups waited for: what a training step and an evaluation have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polar import client
from polar.settings import Settings
from polar.trainer import Group, TrajectoryConsumer
from polar.types.errors import NotReady
from polar.types.task import TaskRequest

ANSWER_S = 60.0
"""For a coordinator to show the tasks."""


async def groups_of(
    settings: Settings,
    requests: Sequence[TaskRequest],
    table: client.SessionTable,
    consumer: TrajectoryConsumer,
    on_group: Callable[[int], None],
) -> list[Group]:
    """All groups of the tasks, in the tasks' order; `on_group` is told how many there are.

    Tasks that were handed in before are not begun again, and the consumer's next groups must be theirs. Raises NotReady.
    """
    order = {request.task_id: at for at, request in enumerate(requests)}
    unseen = await client.submit(settings, requests, table, answer_s=ANSWER_S)
    if unseen:
        raise NotReady(
            f"no coordinator has shown the tasks {', '.join(unseen)} within {ANSWER_S:g} s; see `polar status`"
        )
    found: list[Group] = []
    async for group in consumer.groups():
        if group.task_id not in order:
            raise NotReady(f"the group {group.task_id} is of another run: give this one a data folder of its own")
        found.append(group)
        on_group(len(found))
        if len(found) == len(requests):
            break
    return sorted(found, key=lambda group: order[group.task_id])
