"""Builds in progress: each runs off the event loop, for one open session.

Invariant: a session that was emitted, dropped or opened again while it was built leaves no build behind, so its build is neither waited
for nor mistaken for its successor's. `builder.py` owns what a build reads and what happens to its result.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from consumers.builders.base import Builder, BuiltFrom
from consumers.building.open_sessions import OpenSession
from topics import trajectories
from topics.contract.codec import encode
from topics.environment import registry
from topics.types.trajectory import Trajectory

AT_ONCE = 8
"""Builds of one partition: more would not be faster, since threads share one interpreter lock."""


class Builds:
    """One partition's builds, by session id."""

    def __init__(self, build: Callable[[OpenSession], Coroutine[Any, Any, Trajectory]]) -> None:
        self._build = build
        self._running: dict[str, tuple[OpenSession, asyncio.Task[Trajectory]]] = {}

    def keep(self, due: Sequence[OpenSession]) -> None:
        """Start builds for due sessions, at most AT_ONCE, and cancel the builds of all others."""
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
        """Builds that run, or have finished for sessions that are still due."""
        return [task for _, task in self._running.values()]

    def finished(self) -> list[tuple[OpenSession, Trajectory]]:
        """Sessions of the last `keep` whose build has finished, with their trajectories."""
        return [(session, task.result()) for session, task in self._running.values() if task.done()]

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()


async def off_loop(source: BuiltFrom) -> Trajectory:
    """Build in a daemon thread of its own: a build that hangs is abandoned and blocks no other.

    Raises what the builder raised, as a RuntimeError if it would do harm here; TypeError if the builder returned no trajectory.
    """
    outcome: concurrent.futures.Future[Trajectory] = concurrent.futures.Future()

    def work() -> None:
        try:
            result = _built(source)
        except BaseException as raised:
            # No future takes a StopIteration, and a SystemExit would end the process.
            is_plain = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            outcome.set_exception(raised if is_plain else RuntimeError(f"{type(raised).__name__}: {raised}"))
        else:
            outcome.set_result(result)

    # Of an abandoned build nobody sees the result; `running` keeps the future from being cancelled under the thread.
    outcome.set_running_or_notify_cancel()
    threading.Thread(target=work, name=f"build.{source.build.session_id}", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _built(source: BuiltFrom) -> Trajectory:
    config = json.loads(source.build.builder_config)
    builder: Builder = registry.load(registry.Kind.BUILDER, source.build.builder)(**config)
    trajectory: object = builder.build(source)
    if not isinstance(trajectory, Trajectory):
        raise TypeError(f"{source.build.builder}.build returned {type(trajectory).__name__}, not a Trajectory")
    # Encoded and decoded here, because a trajectory that can't be written or read is this builder's fault and fails this session alone.
    decoded = trajectories.CODEC.decode(encode(trajectory))
    assert isinstance(decoded, Trajectory), "the tag of a Trajectory"
    return decoded
