"""Agents that are Python functions: each sample of a task is a session, and what the function returns is its reward (protocol 28).

Sessions are opened and closed through the control API, in threads, since it blocks. Their trajectories are read from the topic. Invariant:
when the run ends, whether it is cancelled or not, every session that it opened is closed, or ends at its TTL if no proxy answers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from polar.sessions import ENDED_S, Mode, Session, SessionRefusedError, checked_reward, opened
from polar.task_trajectories import following
from topics.environment.settings import Settings
from topics.log.follow import Follower, Since
from topics.types.errors import InputError, NotReadyError
from topics.types.session import task_id_of
from topics.types.trajectory import Trajectory
from topics.waiting.first_done import first_done

T = TypeVar("T")
Agent = Callable[[Session, T], float | Awaitable[float | None] | None]
"""Gets an open session and the task, and returns the reward; None: `session.reward`, which is unknown unless the agent sets it."""


@dataclass(frozen=True)
class AgentResult(Generic[T]):
    """The outcome of one sample of a task."""

    task: T
    session_id: str | None = None
    """None: no session could be opened."""
    trajectory: Trajectory | None = None
    """None: there is no session, or `error` says why its trajectory didn't come."""
    error: Exception | None = None
    """The agent's exception, or the reason why its session couldn't be opened, closed or followed."""

    @property
    def reward(self) -> float | None:
        """The trajectory's: without an answered call a reward doesn't count."""
        return None if self.trajectory is None else self.trajectory.reward


@dataclass
class _Group:
    """The sessions of one task."""

    task_id: str | None
    """None until the first session is open, if the user didn't choose one."""
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Samples are taken in order, and a new task's id is known once the first is open."""


class AgentRun(Generic[T]):
    """One run of an agent on tasks."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent[T],
        *,
        samples: int,
        concurrency: int,
        mode: Mode,
        ttl_s: float,
        run: str | None,
    ) -> None:
        """`mode`, `ttl_s` and `run` are those of each session. Raises InputError."""
        if not callable(agent):
            raise InputError("agent", agent, "must be a function of a session and a task")
        for name, value in (("samples", samples), ("concurrency", concurrency)):
            if not isinstance(value, int) or value < 1:
                raise InputError(name, value, "must be an integer of 1 or more")
        self._settings = settings
        self._agent = agent
        self._is_async = inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(type(agent).__call__)
        self._samples = samples
        self._mode: Mode = mode
        self._ttl_s, self._run = ttl_s, run
        self._slots = asyncio.Semaphore(concurrency)
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="agent")
        """Synchronous agents: the loop's own pool is smaller, and opening and closing sessions needs it."""
        self._waiting: dict[str, asyncio.Future[Trajectory]] = {}
        """By id of a session whose trajectory is to come."""

    async def results(self, tasks: Iterable[T], task_id: Callable[[T], str] | None) -> list[AgentResult[T]]:
        """Run the agent on every sample of the tasks, which are drawn as slots become free; in the tasks' order."""
        running: list[asyncio.Task[AgentResult[T]]] = []
        async with AsyncExitStack() as stack:
            stack.callback(self._threads.shutdown, wait=False, cancel_futures=True)
            output = "eval" if self._mode == "eval" else None
            follower = await stack.enter_async_context(
                following(self._settings, output, self._on_trajectory, since=Since.END)
            )
            try:
                async with asyncio.TaskGroup() as group:
                    for task in tasks:
                        sessions = _Group(None if task_id is None else task_id(task))
                        for _ in range(self._samples):
                            await self._slots.acquire()
                            running.append(group.create_task(self._result(task, sessions, follower), name="agent"))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        results = [each.result() for each in running]
        errors_of_opening = [result.error for result in results if result.session_id is None]
        if results and len(errors_of_opening) == len(results) and errors_of_opening[0] is not None:
            raise errors_of_opening[0]
        return results

    async def _result(self, task: T, group: _Group, follower: Follower) -> AgentResult[T]:
        try:
            try:
                session = await self._opened(group)
            except (InputError, NotReadyError) as refused:
                return AgentResult(task, error=refused)
            arrival = self._waiting[session.session_id] = asyncio.get_running_loop().create_future()
            error = await self._worked(session, task)
        finally:
            self._slots.release()
        await first_done(arrival, follower.failed, timeout_s=ENDED_S)
        if arrival.done():
            return AgentResult(task, session.session_id, arrival.result(), error)
        late = NotReadyError(f"{session.session_id} has no trajectory after {ENDED_S:.0f} s; `polar status` knows it")
        return AgentResult(task, session.session_id, error=error or late)

    async def _opened(self, group: _Group) -> Session:
        async with group.opening:
            wanted = partial(
                Session.open,
                settings=self._settings,
                task_id=group.task_id,
                samples=self._samples,
                mode=self._mode,
                ttl_s=self._ttl_s,
                run=self._run,
            )
            session = await opened(wanted)
            group.task_id = task_id_of(session.session_id)
        return session

    async def _worked(self, session: Session, task: T) -> Exception | None:
        """Let the agent work, and close its session. Returns the agent's exception, or the reason why its session couldn't be closed."""
        error: Exception | None = None
        try:
            async with asyncio.timeout(self._ttl_s) as lifetime:
                reward = await self._returned(session, task)
            session.reward = checked_reward(session.reward if reward is None else reward)
        except Exception as raised:
            session.reward, error = None, raised
            if lifetime.expired():
                error = TimeoutError(f"the agent still worked when its session ended, after {self._ttl_s:g} s")
        except (asyncio.CancelledError, SystemExit) as raised:
            session.reward = None
            if _is_cancelled():
                raise
            # The agent's own: something that it awaited was cancelled, or it called sys.exit. The other agents go on.
            error = _ended_by(raised)
        except BaseException:
            session.reward = None
            raise
        finally:
            try:
                await session.aclose()
            except (SessionRefusedError, NotReadyError) as refused:
                error = error or refused
        return error

    async def _returned(self, session: Session, task: T) -> float | None:
        if self._is_async:
            returned = self._agent(session, task)
        else:
            returned = await asyncio.get_running_loop().run_in_executor(self._threads, self._called, session, task)
        return await returned if inspect.isawaitable(returned) else returned

    def _called(self, session: Session, task: T) -> float | Awaitable[float | None] | None:
        """Call the agent in its thread."""
        try:
            return self._agent(session, task)
        except (StopIteration, SystemExit, asyncio.CancelledError) as raised:
            # No future takes the first, the second would stop the event loop, the third would cancel this sample's task.
            raise _ended_by(raised) from raised

    def _on_trajectory(self, trajectory: Trajectory) -> None:
        arrival = self._waiting.pop(trajectory.session_id, None)
        if arrival is not None and not arrival.done():
            arrival.set_result(trajectory)


def _is_cancelled() -> bool:
    """Whether the current task was cancelled, and not something that it awaits."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


def _ended_by(raised: BaseException) -> RuntimeError:
    """An Exception for a BaseException that ended an agent: a result holds exceptions alone."""
    error = RuntimeError(f"the agent raised {raised!r}")
    error.__cause__ = raised
    return error
