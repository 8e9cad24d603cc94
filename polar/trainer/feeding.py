"""Submits tasks as fast as the trainer consumes their groups: a bounded number of sessions runs or waits for the trainer.

    with TrajectoryConsumer() as consumer, Feed(tasks, max_in_flight=64) as feed:
        for group in consumer.groups(feed, drop_zero_advantage):
            ...

`Feed` is a rule that keeps every group and records its arrival; pass it before rules that drop groups. Invariant: tasks that were sent and
whose group didn't arrive have at most `max_in_flight` samples, so a slow trainer doesn't get ever older samples. `polar.Client.feed` sends
the tasks and bounds the unfinished sessions, including stragglers of incomplete groups, by the same number.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog

from polar.client import Client
from polar.trainer.groups import Group
from polar.trainer.loop_thread import LoopThread
from topics.environment.settings import Settings, load
from topics.types.errors import InputError, NotReadyError
from topics.types.task import TaskRequest
from topics.waiting.first_done import first_done

OUTAGE_S = 300.0
"""How long Kafka may be unreachable, as for the consumer."""
RETRY_S = 1.0
"""Between two tries; `Client.feed` itself waits for the broker before it raises."""
EARLY = 10_000
"""Groups that may arrive before their task is read. A task whose group was forgotten is sent again, and takes its slot for good."""

log = structlog.get_logger()


class State(msgspec.Struct, frozen=True):
    """A checkpoint. Save it together with the consumer's state: both must be of the same moment."""

    drawn: int
    """Number of tasks read from the iterable."""
    waiting: list[int]
    """Positions, from 0, of those tasks whose group didn't arrive yet."""
    early: list[str] = []
    """Ids of groups that arrived before their task was read: after a resume, an earlier process may have sent it. At most `EARLY`."""


class Feed:
    """A rule for `TrajectoryConsumer.groups`. It runs once, inside `with`, in a thread of its own, which also iterates over `tasks`."""

    def __init__(
        self,
        tasks: Iterable[TaskRequest],
        max_in_flight: int,
        *,
        data: str | Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        """`tasks`: any number, each with a unique id. After loading a state, pass the same tasks in the same order.

        `max_in_flight`: number of sessions. `data`, `settings`: as for `TrajectoryConsumer`. Raises InputError.
        """
        if max_in_flight < 1:
            raise InputError("max_in_flight", max_in_flight, "must be 1 or more sessions")
        self._settings = settings or load(None if data is None else Path(data))
        self._tasks = iter(tasks)
        self._max = max_in_flight
        self._begins = State(0, [])
        self._drawn = 0
        self._waiting: dict[str, tuple[int, TaskRequest]] = {}
        """By task id, with its position: sent, or about to be, and its group didn't come yet."""
        self._early: dict[str, None] = {}
        """As in `State`, oldest first. Has the groups of other feeds too, if the consumer yields them."""
        self._news = asyncio.Event()
        self._thread: LoopThread | None = None
        self._feeding: asyncio.Task[None] | None = None

    def __call__(self, group: Group, counts: Counter[str]) -> Group:
        del counts  # nothing is dropped here
        self._on_loop.call(self._came(group.task_id))
        return group

    def check(self) -> None:
        """Raises what ended the sending: nothing more will come."""
        if self._feeding is not None and self._feeding.done():
            self._feeding.result()

    def state_dict(self) -> dict[str, Any]:
        """Which tasks were drawn, and which of them are to come, as JSON can hold it; taken beside the consumer's."""
        state = self._begins if self._thread is None else self._thread.call(self._state())
        made: dict[str, Any] = msgspec.to_builtins(state)
        return made

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; call it before `with`. Raises InputError for an invalid state."""
        assert self._thread is None, "load_state_dict() comes before `with`"
        try:
            self._begins = msgspec.convert(state, State)
        except msgspec.ValidationError as error:
            raise InputError("state", state, f"not a feed's state_dict(): {error}") from None

    def __enter__(self) -> Self:
        self._thread = LoopThread("feed")
        try:
            self._thread.call(self._begin())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def _on_loop(self) -> LoopThread:
        if self._thread is None:
            raise RuntimeError("a feed is used inside `with Feed(...) as feed:`")
        return self._thread

    async def _begin(self) -> None:
        """Start sending, and return when the first task is sent: if it can't be, `with` raises and the trainer doesn't wait for ever."""
        tasks = enumerate(islice(self._tasks, self._begins.drawn))
        wanted = set(self._begins.waiting)
        self._waiting = {task.task_id: (position, task) for position, task in tasks if position in wanted}
        self._drawn, self._early = self._begins.drawn, dict.fromkeys(self._begins.early)
        sent = asyncio.Event()
        self._feeding = asyncio.create_task(self._feed(sent), name="feed")
        await first_done(self._feeding, sent)

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        assert thread is not None, "`with` was entered"
        self._begins = thread.call(self._stop())
        thread.stop()

    async def _stop(self) -> State:
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
        return await self._state()

    async def _state(self) -> State:
        return State(self._drawn, sorted(position for position, _ in self._waiting.values()), list(self._early))

    async def _came(self, task_id: str) -> None:
        if self._waiting.pop(task_id, None) is None:
            self._early[task_id] = None
            if len(self._early) > EARLY:
                forgotten = next(iter(self._early))
                del self._early[forgotten]
                log.warning("forgot an early group", action="trainer.feed_forgot", task=forgotten, limit=EARLY)
        self._news.set()

    async def _feed(self, sent: asyncio.Event) -> None:
        """Send all tasks. Raises as `Client.feed`, but NotReadyError only after Kafka was unreachable for `OUTAGE_S`."""
        away_since: float | None = None

        def on_sent(*_: object) -> None:
            nonlocal away_since
            away_since = None
            sent.set()

        while True:
            try:
                client = Client(self._settings)
                async with client.table() as table:
                    await client.feed(self._due(), table, max_in_flight=self._max, on_sent=on_sent)
                    return
            except NotReadyError as error:
                away_since = time.monotonic() if away_since is None else away_since
                if time.monotonic() - away_since > OUTAGE_S:
                    raise
                log.warning("can't send tasks", action="trainer.feed_retry", reason=str(error))
            await asyncio.sleep(RETRY_S)

    async def _due(self) -> AsyncGenerator[TaskRequest, None]:
        """Tasks to send: first those of a loaded state, whose sending is not certain, then new ones as slots become free."""
        for _, task in list(self._waiting.values()):
            yield task
        for task in self._tasks:
            while self._under_way() + task.num_samples > self._max and self._waiting:
                self._news.clear()
                await self._news.wait()
            if task.task_id in self._early:
                del self._early[task.task_id]
                self._drawn += 1
                continue
            # Without an await between both: a state saved in between would lose the task.
            self._waiting[task.task_id] = (self._drawn, task)
            self._drawn += 1
            yield task

    def _under_way(self) -> int:
        return sum(task.num_samples for _, task in self._waiting.values())
