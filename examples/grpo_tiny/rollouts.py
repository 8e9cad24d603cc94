"""Tasks handed in, and their groups waited for: what a training step and an evaluation have in common."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from polar import Client, NotReadyError, SessionTable, Settings, Status, TaskRequest, Trajectory
from polar.trainer import Group, TrajectoryConsumer

ANSWER_S = 60.0
"""For a coordinator to show the tasks."""
GROUP_S = 600.0
"""For the next group to come: a session ends after 120 s at the latest, and those of a task begin about together."""


class Waiting:
    """A rule of `TrajectoryConsumer.groups` that drops nothing, and ends a wait that is vain."""

    def __init__(self, limit_s: float, check: Callable[[], None]) -> None:
        """`limit_s`: from one group to the next. `check` raises what makes waiting vain."""
        self._limit_s = limit_s
        self._check = check
        self._late = time.monotonic() + limit_s

    def __call__(self, group: Group, counts: Counter[str]) -> Group:
        """A group came."""
        del counts  # nothing is dropped here
        self._late = time.monotonic() + self._limit_s
        return group

    def check(self) -> None:
        """Raises NotReadyError, and what `check` does."""
        self._check()
        if time.monotonic() > self._late:
            raise NotReadyError(f"no group came for {self._limit_s:g} s; see `polar status`, and polar.log")


async def groups_of(
    settings: Settings,
    requests: Sequence[TaskRequest],
    table: SessionTable,
    consumer: TrajectoryConsumer,
    *,
    on_group: Callable[[int], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> list[Group]:
    """All groups of the tasks, at least one, in the tasks' order; `on_group` is told how many there are.

    Tasks that were handed in before are not begun again, and the consumer's next groups must be theirs. Raises
    NotReadyError, also where a next group takes longer than `GROUP_S`, and any error of `check`, which runs during the wait.
    """
    order = {request.task_id: at for at, request in enumerate(requests)}
    unseen = await Client(settings).submit(requests, table, answer_s=ANSWER_S)
    if unseen:
        raise NotReadyError(
            f"no coordinator has shown the tasks {', '.join(unseen)} within {ANSWER_S:g} s; see `polar status`"
        )
    found: list[Group] = []
    async for group in consumer.groups(Waiting(GROUP_S, check)):
        if group.task_id not in order:
            raise NotReadyError(f"the group {group.task_id} is of another run: give this one a data folder of its own")
        found.append(group)
        on_group(len(found))
        if len(found) == len(requests):
            break
    return sorted(found, key=lambda group: order[group.task_id])


def malformed(trajectories: Iterable[Trajectory]) -> int:
    """Sessions whose agent stopped at something malformed: of those that failed the evaluator judges no others."""
    return sum(each.status is Status.FAILED and each.reward is not None for each in trajectories)
