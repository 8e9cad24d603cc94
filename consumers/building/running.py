"""Builds under way: each off the event loop, within its time, and for the very session that is open.

Invariant: a session that was emitted, dropped or opened anew while it was built leaves no build behind, so that nothing of it is waited
for and nothing of it is taken for its successor's. What a build reads and what becomes of it is the keeper's.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from consumers.builders.base import Builder, BuiltFrom
from consumers.building.open_sessions import OpenSession
from topics import trajectories
from topics.contract.codec import encode
from topics.environment import registry
from topics.types.trajectory import Trajectory

AT_ONCE = 8
"""Builds of one partition."""


class Builds:
    """One partition's builds, by session id."""

    def __init__(self, build: Callable[[OpenSession], Coroutine[Any, Any, Trajectory]]) -> None:
        self._build = build
        self._running: dict[str, tuple[OpenSession, asyncio.Task[Trajectory]]] = {}

    def keep(self, due: Sequence[OpenSession]) -> None:
        """Have builds of what is due, as many as there may be, and of nothing else."""
        wanted = {session.opened.session_id: session for session in due}
        for session_id, (session, task) in list(self._running.items()):
            if wanted.get(session_id) is not session:
                task.cancel()
                del self._running[session_id]
        for session_id, session in wanted.items():
            if len(self._running) >= AT_ONCE:
                return
            if session_id not in self._running:
                task = asyncio.create_task(self._build(session), name=f"build.{session_id}")
                self._running[session_id] = session, task

    @property
    def tasks(self) -> list[asyncio.Task[Trajectory]]:
        """To wait for: under way, or finished and not yet taken."""
        return [task for _, task in self._running.values()]

    def finished(self) -> list[tuple[OpenSession, Trajectory]]:
        """What is built, of the sessions that `keep` was last told of."""
        return [(session, task.result()) for session, task in self._running.values() if task.done()]

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


async def off_loop(source: BuiltFrom) -> Trajectory:
    """Build in a thread of its own: one that hangs is left behind, a daemon, and takes no place of others.

    Raises what it raised, as a RuntimeError where that would do harm here; TypeError where it returned no trajectory.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Trajectory] = loop.create_future()

    def settle(result: Trajectory | BaseException) -> None:
        if outcome.done():
            return
        if isinstance(result, BaseException):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)

    def work() -> None:
        result: Trajectory | BaseException
        try:
            result = _built(source)
        except BaseException as raised:
            # No future takes a StopIteration, and a SystemExit would end the process.
            is_plain = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            result = raised if is_plain else RuntimeError(f"{type(raised).__name__}: {raised}")
        # The loop may be gone by the time a build that was given up ends.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=work, name=f"build.{source.build.session_id}", daemon=True).start()
    return await outcome


def _built(source: BuiltFrom) -> Trajectory:
    config = json.loads(source.build.builder_config)
    builder: Builder = registry.load(registry.Kind.BUILDER, source.build.builder)(**config)
    trajectory: object = builder.build(source)
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"{source.build.builder}.build returned {type(trajectory).__name__}, not a Trajectory")
    # As its readers will have it: what can't be written or read is this builder's fault, and costs this session alone.
    read = trajectories.CODEC.decode(encode(trajectory))
    assert isinstance(read, Trajectory), "its tag says so"
    return read
