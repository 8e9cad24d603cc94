"""Both servers' connection to Polar, one for all requests of a process, and its errors as HTTP statuses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, HTTPException

from polar.nemo_gym.rollouts import Rollouts
from topics.environment.settings import load
from topics.log import kafka
from topics.types.errors import InputError, NotReadyError


class Connection:
    """Connects at the first request. The first request after a connection failed opens a new one.

    Requests wait for one attempt to connect, each until its own deadline, and share its error. A failed connection stays open while
    earlier requests use it, since closing it would end their waits in another way.
    """

    def __init__(self, data: str | None) -> None:
        """`data`: the system's folder; None: as for `polar.Client`, by POLAR_* variables. Raises InputError."""
        self._settings = load(None if data is None else Path(data))
        self._newest: asyncio.Task[Rollouts] | None = None
        """The last attempt to connect."""
        self._users: Counter[Rollouts] = Counter()
        """Number of requests by open connection."""

    def close_with(self, app: FastAPI) -> FastAPI:
        """The app, which disconnects at its end."""
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(served: FastAPI) -> AsyncIterator[object]:
            async with inner(served) as state:
                try:
                    yield state
                finally:
                    await self._disconnect()

        app.router.lifespan_context = lifespan
        return app

    @asynccontextmanager
    async def rollouts(self, due: float) -> AsyncIterator[Rollouts]:
        """The connection. Inside, errors become HTTP's: 422 for what the request has wrong, 503 if Polar can't be reached.

        `due`: the request's deadline, in the event loop's time. NeMo Gym's collection reads 503 as a rollout that didn't run.
        """
        try:
            rollouts = await self._connected(due)
            self._users[rollouts] += 1
            try:
                yield rollouts
            finally:
                self._users[rollouts] -= 1
        except InputError as error:
            raise HTTPException(422, str(error)) from None
        except (NotReadyError, kafka.KafkaError) as error:
            raise HTTPException(503, str(error)) from None

    async def _connected(self, due: float) -> Rollouts:
        """The newest connection. Raises as `Rollouts.__aenter__`, and NotReadyError at the deadline."""
        if self._newest is None or _has_failed(self._newest):
            self._newest = asyncio.create_task(self._connect(), name="nemo_gym_connect")
        try:
            async with asyncio.timeout_at(due):
                return await asyncio.shield(self._newest)
        except TimeoutError:
            raise NotReadyError(f"not connected to Kafka at {self._settings.bootstrap} by the deadline") from None

    async def _connect(self) -> Rollouts:
        made = await Rollouts(self._settings).__aenter__()
        unused = [connection for connection, requests in self._users.items() if not requests]
        self._users[made] = 0
        await self._close(unused)
        return made

    async def _disconnect(self) -> None:
        if self._newest is not None:
            self._newest.cancel()
            await asyncio.gather(self._newest, return_exceptions=True)
        await self._close(list(self._users))

    async def _close(self, connections: list[Rollouts]) -> None:
        async with AsyncExitStack() as ends:  # all are closed, even if this is cancelled
            for connection in connections:
                del self._users[connection]
                ends.push_async_exit(connection)


def _has_failed(attempt: asyncio.Task[Rollouts]) -> bool:
    """Whether it ended without a connection, or with one that can't be used any longer."""
    if not attempt.done():
        return False
    return attempt.cancelled() or attempt.exception() is not None or attempt.result().has_failed
