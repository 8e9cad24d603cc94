"""The trajectories of known tasks, each once, as the builder writes them.

A trajectories topic is read from a time at which none of theirs was written. Which samples there are is read from the coordinator's table.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from polar.table import SessionTable, TaskRefusedError
from topics import trajectories
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.types.errors import NotReadyError
from topics.types.session import TaskState, session_id_of
from topics.types.trajectory import Trajectory
from topics.waiting.first_done import first_done

SHOWN_S = 60.0
"""Deadline for a coordinator to show a task: longer than a coordinator's restart."""
READ_S = 3600.0
"""Deadline for reading what lies on the topic; Kafka is known to answer by then."""
CLOCKS_S = 60.0
"""How far the clocks of two hosts may differ."""
ROW_DELAY_S = 3600.0
"""The row of an ended session is written later than its trajectory, by another clock. Without a coordinator it is much later."""
NAMED = 5
"""Missing sessions that an error names."""


@asynccontextmanager
async def following(
    settings: Settings, output: str | None, on_trajectory: Callable[[Trajectory], None], *, since: Since
) -> AsyncIterator[Follower]:
    """Pass each trajectory of an output topic on, in a task of its own; inside the context all older ones were passed on.

    Raises NotReadyError.
    """

    def on_record(record: trajectories.Output, _: object) -> None:
        if isinstance(record, Trajectory):
            on_trajectory(record)

    follower = Follower(settings, trajectories.topic(output), on_record, since=since, committed=True)
    await follower.start(READ_S)
    try:
        yield follower
    finally:
        await follower.stop()


async def task_trajectories(
    settings: Settings, table: SessionTable, task_ids: Collection[str], deadline_s: float | None
) -> AsyncGenerator[Trajectory, None]:
    """Yield the trajectory of each sample of the tasks once. Raises what `Client.trajectories` documents."""
    due = None if deadline_s is None else time.monotonic() + deadline_s
    opened_at = time.time()
    await table.caught_up()
    await _until_shown(table, task_ids, due)
    shown = [table.tasks[task_id] for task_id in task_ids if task_id in table.tasks]
    missing = {session_id_of(task.task_id, index) for task in shown for index in range(task.num_samples)}
    ready: deque[Trajectory] = deque()
    arrived = asyncio.Event()

    def on_trajectory(trajectory: Trajectory) -> None:
        if trajectory.session_id in missing:  # `polar rebuild` may write a second one
            missing.remove(trajectory.session_id)
            ready.append(trajectory)
            arrived.set()

    def all_over() -> bool:
        return all(map(table.is_over, task_ids))

    async with AsyncExitStack() as stack:
        followers = [
            await stack.enter_async_context(following(settings, output, on_trajectory, since=since))
            for output, since in _since(table, shown, opened_at).items()
        ]
        while True:
            while ready:
                yield ready.popleft()
            if not missing and all_over():
                break
            remaining_s = _remaining_s(due, missing)
            if all_over():
                for follower in followers:
                    await follower.caught_up(READ_S)
                if missing and not ready:
                    raise NotReadyError(
                        f"{_named(missing)}: ended, but the trajectories have left their topic; the lake may have them"
                    )
                continue
            arrived.clear()
            await first_done(
                arrived, table.until(all_over, None), *(each.failed for each in followers), timeout_s=remaining_s
            )
    if refusals := [table.refusals[task_id] for task_id in task_ids if task_id in table.refusals]:
        raise TaskRefusedError(refusals)


async def _until_shown(table: SessionTable, task_ids: Collection[str], due: float | None) -> None:
    """Wait until a coordinator shows every task that isn't refused. Raises NotReadyError, or TimeoutError if `due` comes first."""

    def unknown() -> list[str]:
        return [task_id for task_id in task_ids if table.shown_hash(task_id) is None and task_id not in table.refusals]

    remaining_s = _remaining_s(due, unknown())
    if await table.until(lambda: not unknown(), SHOWN_S if remaining_s is None else min(SHOWN_S, remaining_s)):
        return
    _remaining_s(due, unknown())
    raise NotReadyError(
        f"{_named(unknown())}: no coordinator has shown the task within {SHOWN_S:.0f} s; was it submitted? "
        "(`polar status`; `polar dead-letters list` shows refused tasks)"
    )


def _since(table: SessionTable, tasks: Sequence[TaskState], opened_at: float) -> dict[str | None, Since]:
    """By output topic: where to begin, so that every trajectory of these tasks comes. `opened_at`: Unix time before the table was read."""
    now = time.time()
    seconds: dict[str | None, float] = {}
    for task in tasks:
        built_ms = table.built_ms(task.task_id)
        ago = now - opened_at + CLOCKS_S if built_ms is None else now - built_ms / 1000 + ROW_DELAY_S
        output = None if task.plan is None else task.plan.output
        seconds[output] = max(ago, seconds.get(output, 0.0))
    return {output: Since.ago(ago) for output, ago in seconds.items()}


def _remaining_s(due: float | None, missing: Collection[str]) -> float | None:
    """Seconds until `due`, on the monotonic clock; None: no end. Raises TimeoutError if it has passed."""
    if due is None:
        return None
    if (remaining_s := due - time.monotonic()) > 0:
        return remaining_s
    raise TimeoutError(f"the deadline passed before the trajectories of {_named(missing)}; the tasks go on")


def _named(names: Collection[str]) -> str:
    first = ", ".join(sorted(names)[:NAMED])
    return first if len(names) <= NAMED else f"{first} and {len(names) - NAMED} more"
