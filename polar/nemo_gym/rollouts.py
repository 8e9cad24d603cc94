"""Rows of NeMo Gym as tasks, and their trajectories.

A rollout is a task of one sample. Its id follows from the row's, so a request that comes again gets the trajectory that there is.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Self

from polar.client import Client
from polar.table import SessionTable, TaskRefusedError
from polar.task_trajectories import READ_S, SHOWN_S, following, task_trajectories
from polar.tasks.row_mapping import mapped
from polar.tasks.row_options import RowOptions
from polar.tasks.rows import Row
from polar.tasks.templates import merged
from polar.trainer.prompt_tasks import OURS, require_free
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.types.errors import InputError, NotReadyError
from topics.types.session import session_id_of, task_id_of
from topics.types.task import TaskRequest, parse
from topics.types.trajectory import Trajectory
from topics.waiting.first_done import first_done

RUN = "[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
"""Names of runs: a task's id begins with its run's name."""
FIXED = tuple(name for name in OURS if name != "mode")
"""Fields of a task that follow from the rollout. A task of the mode `eval` is one too: its trajectory stays out of other trainings."""
TASK = "polar_task"
"""A row's own part of the template."""
READERS = 4
"""Concurrent reads of trajectories that were there before: each reads the topic from an hour before the session's end on."""
CANCEL_S = 45.0
"""For a request to cancel a task: longer than `Client.cancel` waits for its acknowledgement."""


def task_of(row: Mapping[str, Any], template: Mapping[str, Any], *, run: str, rollout_id: str | None) -> TaskRequest:
    """The task of one rollout of a row, by the rules of `polar tasks import` (docs/task_sets.md).

    `row` has only its fields that are set. Those that begin with an underscore are the collector's own. `polar_task` has values that take
    the place of the template's. Raises InputError for a row that is refused.
    """
    own = row.get(TASK, {})
    if not isinstance(own, Mapping):
        raise InputError(TASK, own, "must be a mapping of a task's fields (docs/task.md)")
    template = merged(template, own)
    require_free(template, "the rollout", FIXED)
    name = task_id_for(run, rollout_id)
    fields = {key: value for key, value in row.items() if key != TASK and not key.startswith("_")}
    made = mapped(Row("row", fields), name, template, RowOptions())
    if made.refusals:
        first = made.refusals[0]
        raise InputError(first.name, first.value, first.becomes)
    return parse({**made.body, "task_id": name, "num_samples": 1, "run": run})


def task_id_for(run: str, rollout_id: str | None) -> str:
    """`RUN-ROLLOUT`, with a hash for an id that no task can have, and a new one for None."""
    rollout = uuid.uuid4().hex if rollout_id is None else rollout_id
    if re.fullmatch("[A-Za-z0-9_-]{1,64}", rollout) is None:
        rollout = hashlib.sha256(rollout.encode()).hexdigest()
    return f"{run}-{rollout}"


@dataclass
class _Awaited:
    """A task that requests wait for."""

    requests: int = 0
    trajectory: Trajectory | None = None
    """None: it hasn't come since the first of these requests."""


class Rollouts:
    """One process's connection to Polar, inside `async with`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._client = settings, Client(settings)
        self._table: SessionTable = self._client.table()
        self._awaited: dict[str, _Awaited] = {}
        """By task id."""
        self._readers = asyncio.Semaphore(READERS)
        self._stack = AsyncExitStack()
        self._follower: Follower | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._table)
            self._follower = await stack.enter_async_context(
                following(self._settings, None, self._on_trajectory, since=Since.END)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def has_failed(self) -> bool:
        """Whether it can't be used any longer."""
        assert self._follower is not None, "entered"
        return self._follower.failed.done() or self._table.has_failed

    async def run(self, request: TaskRequest, due: float) -> Trajectory:
        """Submit the task, unless it was submitted before, and wait for its trajectory until `due`, in the event loop's time.

        Then the session is cancelled, unless another request waits for it. Raises TimeoutError after that, and as `Client.submit` does.
        Whoever stops waiting earlier leaves the session running.
        """
        task_id = request.task_id
        awaited = self._awaited.setdefault(task_id, _Awaited())
        awaited.requests += 1
        try:
            async with asyncio.timeout_at(due):
                if await self._client.submit(request, self._table, answer_s=SHOWN_S):
                    raise NotReadyError(f"no coordinator has shown {task_id} within {SHOWN_S:g} s; see `polar status`")
                assert self._follower is not None, "entered"
                await first_done(self._table.until(lambda: self._table.is_over(task_id), None), self._follower.failed)
                return await self._trajectory(task_id, awaited)
        except TimeoutError:
            if awaited.requests > 1:
                raise TimeoutError(f"{task_id} didn't end by the deadline; another request waits for it") from None
            await self._cancel(task_id)
            raise TimeoutError(f"{task_id} didn't end by the deadline, and is cancelled") from None
        finally:
            awaited.requests -= 1
            if not awaited.requests:
                del self._awaited[task_id]

    async def ended(self, session_id: str, due: float) -> Trajectory:
        """The trajectory of a session that ended.

        Raises InputError for one that hasn't, or is unknown, NotReadyError, and TimeoutError at `due`, in the event loop's time.
        """
        async with asyncio.timeout_at(due):
            await self._table.caught_up()  # the caller may know the end from another process
            if session_id not in {row.session_id for row in self._table.ended(task_id_of(session_id))}:
                raise InputError("session_id", session_id, "no session of this system that has ended")
            return await self._read(session_id)

    async def _cancel(self, task_id: str) -> None:
        """Raises NotReadyError."""
        try:
            async with asyncio.timeout(CANCEL_S):
                await self._client.cancel(task_id)
        except TimeoutError:
            reason = f"Kafka didn't answer the request to cancel it within {CANCEL_S:g} s"
            raise NotReadyError(f"{task_id} didn't end by the deadline, and goes on: {reason}") from None

    async def _trajectory(self, task_id: str, awaited: _Awaited) -> Trajectory:
        if (refusal := self._table.refusals.get(task_id)) is not None:
            raise TaskRefusedError([refusal])
        assert self._follower is not None, "entered"
        await self._follower.caught_up(READ_S)
        # Without one it ended before this request.
        return awaited.trajectory or await self._read(session_id_of(task_id, 0))

    async def _read(self, session_id: str) -> Trajectory:
        """Read the trajectory of a session that ended. Raises NotReadyError."""
        reading = task_trajectories(self._settings, self._table, [task_id_of(session_id)], None)
        async with self._readers, aclosing(reading) as found:
            async for trajectory in found:
                if trajectory.session_id == session_id:
                    return trajectory
        raise NotReadyError(f"{session_id}: the trajectory has left its topic; the lake may have it")

    def _on_trajectory(self, trajectory: Trajectory) -> None:
        awaited = self._awaited.get(trajectory.task_id)
        if awaited is not None and trajectory.rebuilt_with is None:
            awaited.trajectory = trajectory
