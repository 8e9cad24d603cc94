"""OpenEnv sessions that are sessions of Polar: a `ResourceSessionFactory` for trainers such as TRL's asynchronous GRPO.

    HarnessRolloutWorker(harness_session_factory=partial(PolarSessionFactory, task, run="r1"), …)

Made for openenv 0.10.0 (`openenv/core/harness/rollout.py`). A created session is a task of one sample; the agent runs in Polar with tools
of its own. Its training trace and its reward come from its trajectory, once the coordinator has ended it.

Sessions are used from any thread. A factory connects to Kafka at its first session, in the process that creates it.
"""

from __future__ import annotations

import asyncio
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from polar.client import Client
from polar.table import TaskRefusedError
from polar.task_trajectories import READ_S, following
from polar.trainer.exporters.openenv import env_reward, training_trace
from polar.trainer.groups import Group
from polar.trainer.loop_thread import LoopThread
from polar.trainer.prompt_tasks import RUN, require_free
from polar.trainer.sampling_expectation import expect
from topics.environment.settings import Settings, load
from topics.log.follow import Follower, Since
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Status
from topics.types.task import TaskRequest, parse
from topics.types.trajectory import Trajectory
from topics.waiting.first_done import first_done

try:
    from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, TrainingTrace, VerifyResult
except ImportError as error:
    raise ImportError(f"polar.trainer.openenv needs openenv 0.10.0: pip install openenv==0.10.0 ({error})") from None

SHOWN_S = 60.0
"""For a coordinator to show a task."""
CANCELLED_S = 120.0
"""From the request to cancel a session to its trajectory: calls in flight have 2 s, a build has a minute."""

log = structlog.get_logger()


class PolarSessionFactory(ResourceSessionFactory["PolarSession"]):  # type: ignore[misc]
    """Creates sessions in one Polar system. It can be pickled; the copy has a connection of its own."""

    def __init__(
        self,
        task: Callable[[Any], Mapping[str, Any]],
        *,
        run: str,
        data: str | Path | None = None,
        sampling: Mapping[str, float] | None = None,
    ) -> None:
        """`task`: the body of the task (docs/task.md) for what `create` gets, such as a row's `prompt`, without the fields
        `prompt_tasks.OURS`.

        `run`: a name for this training, which its tasks and trajectories carry. `data`: the system's folder; None: as for `polar.Client`.
        `sampling`: how the trainer assumes that tokens were sampled, by vLLM's names; TRL passes it. The tasks are sampled so, and
        sessions with a call that wasn't are no training data. Raises InputError.
        """
        if re.fullmatch(RUN, run) is None:
            raise InputError("run", run, f"must match {RUN}")
        self._task, self._run, self._sampling = task, run, dict(sampling or {})
        self._settings = load(None if data is None else Path(data))
        self._connection: _Connection | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_connection", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _connection=None, _lock=threading.Lock())

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> PolarSession:
        """Submit the task, whose id is RUN-SEED-EPISODE, and return its session. An `episode_id` is used once; None: a new one.

        Raises InputError, and as `Client.submit` does. Raises NotReadyError if no coordinator shows the task.
        """
        request = self._request(task, seed, episode_id)
        with self._lock:
            if self._connection is None:
                self._connection = _Connection(self._settings)
        self._connection.thread.call(self._connection.submit(request))
        return PolarSession(self._connection, request, self._sampling.get("temperature"))

    def close(self) -> None:
        """Disconnect. The caller has closed the sessions."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _request(self, task: Any, seed: int | None, episode_id: str | None) -> TaskRequest:
        body = dict(self._task(task))
        require_free(body, "the session")
        sampling = dict(body.get("sampling") or {})
        for name, value in self._sampling.items():
            if sampling.setdefault(name, value) != value:
                reason = f"must be {value:g}, as the trainer assumes; leave it out of the task"
                raise InputError(f"sampling.{name}", sampling[name], reason)
        task_id = f"{self._run}-{seed or 0}-{episode_id or uuid.uuid4().hex}"
        return parse({**body, "task_id": task_id, "run": self._run, "sampling": sampling})


class PolarSession(ResourceSession):  # type: ignore[misc]
    """One session, by OpenEnv's `ResourceSession` and `TrainableSession`."""

    def __init__(self, connection: _Connection, request: TaskRequest, temperature: float | None) -> None:
        """Use `PolarSessionFactory.create`. `temperature`: what the trainer assumes; None: anything."""
        self._connection, self._request, self._temperature = connection, request, temperature
        self._trajectory: Trajectory | None = None

    def initial_messages(self) -> list[dict[str, Any]]:
        """The instruction."""
        return [{"role": "user", "content": self._request.instruction}]

    def list_tools(self) -> list[Any]:
        """No tools: the agent has its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """An error."""
        del arguments
        return ToolResult(error=f"{name}: the agent runs in Polar and has tools of its own")

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait for the trajectory; 0 if the session is COMPLETED, otherwise 1. None: the task's own time limits end every session.

        Raises TimeoutError if the session reached a time limit of its own, or `timeout_s` passes; the session then goes on. Raises
        TaskRefusedError, and NotReadyError if the session was closed.
        """
        trajectory = self._ended(timeout_s)
        if trajectory.status is Status.TIMED_OUT:
            raise TimeoutError(f"{trajectory.session_id} reached its time limit")
        return 0 if trajectory.status is Status.COMPLETED else 1

    def fetch_training_trace(self) -> TrainingTrace:
        """The session's training trace. A session that still runs is cancelled; it has no reward, and so no turns.

        Raises InputError as `exporters.openenv.training_trace` does, TimeoutError if a cancelled session doesn't end, and as
        `wait_for_completion` does.
        """
        return TrainingTrace.model_validate(training_trace(self._last()))

    def verify(self, transcript: list[Any], final_state: Any | None = None) -> VerifyResult:
        """The evaluator's reward; None if there is none, or the session is no training data. Raises as `fetch_training_trace` does."""
        del transcript, final_state  # the evaluator saw the sandbox
        trajectory = self._last()
        names = {"session_id": trajectory.session_id, "status": trajectory.status.value}
        return VerifyResult(env_reward=env_reward(trajectory), done=True, artifacts=names)

    def close(self) -> None:
        """Cancel the session if it still runs, and end a wait for it in another thread. Raises NotReadyError."""
        self._connection.thread.call(self._connection.end(self._request.task_id))

    def _last(self) -> Trajectory:
        if self._trajectory is None:
            self._connection.thread.call(self._connection.cancel(self._request.task_id))
        return self._ended(CANCELLED_S)

    def _ended(self, timeout_s: float | None) -> Trajectory:
        if self._trajectory is None:
            found = self._connection.thread.call(self._connection.trajectory(self._request.task_id, timeout_s))
            self._trajectory = found if self._temperature is None else _as_expected(found, self._temperature)
        return self._trajectory


@dataclass
class _Episode:
    """A session from its creation to its close."""

    trajectory: Trajectory | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class _Connection:
    """One process's connection to Polar, on an event loop in a thread of its own: OpenEnv is synchronous."""

    def __init__(self, settings: Settings) -> None:
        """Connect. Raises NotReadyError."""
        self.thread = LoopThread("openenv")
        self._settings, self._client = settings, Client(settings)
        self._table = self._client.table()
        self._episodes: dict[str, _Episode] = {}
        """By task id."""
        self._stack = AsyncExitStack()
        try:
            self._follower = self.thread.call(self._open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.thread.call(self._stack.aclose())
        self.thread.stop()

    async def submit(self, request: TaskRequest) -> None:
        if request.task_id in self._episodes or request.task_id in self._table.tasks:
            raise InputError("episode_id", request.task_id, "was used before; every session needs a new one")
        self._episodes[request.task_id] = _Episode()
        try:
            unseen = await self._client.submit(request, self._table, answer_s=SHOWN_S)
            if unseen:
                raise NotReadyError(
                    f"no coordinator has shown {request.task_id} within {SHOWN_S:g} s; see `polar status`"
                )
        except BaseException:
            del self._episodes[request.task_id]
            raise

    async def trajectory(self, task_id: str, timeout_s: float | None) -> Trajectory:
        """The trajectory of an open session. Raises TimeoutError, TaskRefusedError, and NotReadyError."""
        episode = self._episodes.get(task_id)
        if episode is None or episode.closed.is_set():
            raise NotReadyError(f"the session of {task_id} is closed")
        ended = self._table.until(lambda: self._table.is_over(task_id), None)
        await first_done(episode.closed, ended, timeout_s=timeout_s)
        if episode.closed.is_set():
            raise NotReadyError(f"the session of {task_id} was closed while it ran")
        if not self._table.is_over(task_id):
            raise TimeoutError(f"{task_id} still runs after {timeout_s:g} s")
        if (refusal := self._table.refusals.get(task_id)) is not None:
            raise TaskRefusedError([refusal])
        await self._follower.caught_up(READ_S)
        assert episode.trajectory is not None, "a trajectory is written before the row of its session's end"
        return episode.trajectory

    async def cancel(self, task_id: str) -> None:
        """Request the end of a session that still runs."""
        if not self._table.is_over(task_id):
            await self._client.cancel(task_id)

    async def end(self, task_id: str) -> None:
        """Close an open session; a second time does nothing."""
        episode = self._episodes.pop(task_id, None)
        if episode is not None:
            episode.closed.set()
            await self.cancel(task_id)

    async def _open(self) -> Follower:
        await self._stack.enter_async_context(self._table)
        return await self._stack.enter_async_context(
            following(self._settings, None, self._on_trajectory, since=Since.END)
        )

    def _on_trajectory(self, trajectory: Trajectory) -> None:
        if (episode := self._episodes.get(trajectory.task_id)) is not None:
            episode.trajectory = trajectory


def _as_expected(trajectory: Trajectory, temperature: float) -> Trajectory:
    """The trajectory, without its reward if a trained call was sampled otherwise than the trainer's ratio assumes."""
    rule, reasons = expect(temperature=temperature, logprobs="processed", otherwise_plain=True), Counter[str]()
    group = rule(Group(trajectory.task_id, [trajectory]), reasons)
    if group is not None and group.trajectories:
        return trajectory
    log.warning(
        "a session isn't trained: its calls were sampled otherwise than the trainer assumes",
        action="trainer.sampled_otherwise",
        session_id=trajectory.session_id,
        reasons=dict(reasons),
    )
    return replace(trajectory, reward=None)
