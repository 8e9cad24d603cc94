"""`Client`, for programs that produce tasks: submit them, get their trajectories, run agents that are functions, cancel.

A client writes `polar.tasks` and `CancelRequested`. It reads their outcome by a `SessionTable`. A trainer reads trajectories by
`polar.trainer`, which keeps a position; every decision about a task is the coordinator's.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from polar.agents import Agent, AgentResult, AgentRun
from polar.sessions import TTL_S, Mode, Session, SessionRefusedError, opened, until_ended
from polar.table import SessionTable, TaskRefusedError, require_topic
from polar.task_bodies import Task, listed, requests_of, sized_body
from polar.task_trajectories import task_trajectories
from polar.uploads import Uploads, lacks_content
from topics import events, sessions, tasks, workers
from topics.environment import blob_store
from topics.environment.settings import Settings, load
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.log.liveness import Leases
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Stage, task_id_of
from topics.types.task import TaskRequest, body_hash
from topics.types.trajectory import Trajectory

ANSWER_S = 10.0
"""How long `submit` waits for a coordinator to show its tasks: a coordinator shows a task within a second."""
SEND_S = 30.0
"""Deadline of one acknowledgement: longer than an election of a partition's leader."""
KAFKA_CHECK_S = 15.0
"""How often a long wait checks that Kafka can still be reached."""
GONE_S = 120.0
"""How long Kafka may be away before a wait ends: longer than a broker's restart."""
AT_ONCE = 100
"""Tasks sent before their acknowledgements are awaited."""
HEARTBEATS_FROM_S = 10.0
"""How far back `polar.workers` is read to find live workers (protocol 30)."""
AGENTS = 16
"""Default number of agents at work."""

T = TypeVar("T")


class Client:
    """Submits tasks to one Polar system and gets what they come to.

    Each call has its own connection to Kafka and reads the coordinator's table anew. Inside `async with` all calls share one table, which
    follows all tasks and remembers refusals.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings`: those of the system (`polar.load_settings`). None: the system that the `polar` command would find."""
        self.settings = settings or load()
        self._shared: SessionTable | None = None

    async def __aenter__(self) -> Self:
        self._shared = await self.table().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        shared, self._shared = self._shared, None
        assert shared is not None, "entered by `async with`"
        await shared.__aexit__()

    def table(self, task_ids: Collection[str] | None = None) -> SessionTable:
        """The coordinator's table for these tasks, or for all, with the refusals of those that are submitted with it."""
        return SessionTable(self.settings, task_ids, with_refusals=True)

    async def submit(
        self, requests: Task | Sequence[Task], table: SessionTable | None = None, *, answer_s: float = ANSWER_S
    ) -> list[str]:
        """Produce all tasks, or none, and wait `answer_s` for a coordinator to show them. The ids that none has shown.

        A task is a TaskRequest, or a mapping of its fields, as a task file has them. The files that the tasks upload are stored first;
        relative sources start at the current folder. A task that was submitted before with an equal body is the same task.

        Raises InputError for an invalid field, for a file that can't be uploaded, for a body that is too large, for settings that a
        plug-in refuses, and for an id in use by another body: before anything is sent, unless both bodies are submitted at the same time.
        Raises NotReadyError if files can't be stored, or Kafka doesn't acknowledge all tasks: submitting them again is safe. Raises
        TaskRefusedError, when the wait is over, for tasks that the system refuses; later refusals are in `table.refusals`.

        `table`: one of `Client.table` that follows these tasks; None: the client's own.
        """
        complete = await self._complete(requests_of(requests))
        bodies = {task_id: await asyncio.to_thread(sized_body, request) for task_id, request in complete.items()}
        hashes = {task_id: body_hash(body) for task_id, body in bodies.items()}
        async with self._table(hashes, table) as followed:
            return await self._submitted(bodies, hashes, followed, answer_s)

    async def _submitted(
        self, bodies: Mapping[str, bytes], hashes: Mapping[str, str], table: SessionTable, answer_s: float
    ) -> list[str]:
        def missing() -> list[str]:
            return [task_id for task_id, expected in hashes.items() if not _is_shown(table, task_id, expected)]

        def unanswered() -> list[str]:
            return [task_id for task_id in missing() if task_id not in table.refusals]

        missing()  # raises InputError for an id in use
        table.expect(hashes)
        await self._produce(bodies)
        await table.until(lambda: not unanswered(), answer_s)
        if refusals := [table.refusals[task_id] for task_id in hashes if task_id in table.refusals]:
            raise TaskRefusedError(refusals, unanswered())
        return unanswered()

    async def trajectories(
        self, tasks: Task | str | Sequence[Task | str], *, deadline_s: float | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """Yield the trajectory of every sample of these tasks once, as they come; those of samples that ended before come first.

        Tasks are named by their id, or as they were submitted. Failed, cancelled and lost sessions have a trajectory too, with their
        status. What was yielded isn't remembered: a second call yields all again. A trainer that must go on after a crash uses
        `polar.trainer.TrajectoryConsumer`.

        Raises TaskRefusedError for refused tasks, once all trajectories of the others were yielded. Raises NotReadyError if no
        coordinator shows a task within a minute, or if trajectories have left their topic. Raises InputError if an id is in use by
        another body. Raises TimeoutError after `deadline_s`. The tasks go on in any case.
        """
        named: list[Task | str] = listed(tasks)
        ids = [task for task in named if isinstance(task, str)]
        requests = requests_of([task for task in named if not isinstance(task, str)])
        # A task with unstored files has no hash yet. It is followed by its id alone.
        hashes = {task.task_id: body_hash(task.canonical()) for task in requests if not lacks_content(task)}
        wanted = list(dict.fromkeys([*ids, *(task.task_id for task in requests)]))
        async with self._table(wanted) as table:
            for task_id, expected in hashes.items():
                if not _is_shown(table, task_id, expected) and task_id not in table.refusals:
                    table.expect({task_id: expected})
            async with aclosing(task_trajectories(self.settings, table, wanted, deadline_s)) as found:
                async for trajectory in found:
                    yield trajectory

    @asynccontextmanager
    async def session(
        self,
        *,
        task_id: str | None = None,
        samples: int | None = None,
        ttl_s: float = TTL_S,
        mode: Mode = "train",
        run: str | None = None,
        label: str | None = None,
    ) -> AsyncIterator[Session]:
        """A `Session` for the block, which its end closes; arguments and errors as of `Session.open`.

            async with client.session() as session:
                answer = await session.async_openai().chat.completions.create(model="any", messages=[…])
                session.reward = 1.0

        A block that raises closes the session, too. Otherwise `session.ended` is set, if Kafka can be reached.
        """
        wanted = partial(Session.open, task_id=task_id, samples=samples, ttl_s=ttl_s, mode=mode, run=run, label=label)
        session = await opened(partial(wanted, settings=self.settings))
        try:
            yield session
        except BaseException:
            with suppress(SessionRefusedError, NotReadyError):  # the caller must see the block's own error
                await session.aclose()
            raise
        await session.aclose()
        if self.settings.kafka is not None:
            with suppress(NotReadyError):
                session.ended = await until_ended(self.settings, session.session_id)

    async def run(
        self,
        agent: Agent[T],
        tasks: Iterable[T],
        *,
        samples: int = 1,
        concurrency: int = AGENTS,
        task_id: Callable[[T], str] | None = None,
        ttl_s: float = TTL_S,
        mode: Mode = "train",
        run: str | None = None,
    ) -> list[AgentResult[T]]:
        """Run an agent that is a Python function, async or not, on every sample of the tasks; the results in the tasks' order.

        `agent` gets an open `Session` and the task, and returns the reward. A task is any value. `samples`: number of samples of each
        task, which are a group. `concurrency`: number of agents at work. `task_id`: chooses each task's id, which must be new; None:
        Polar makes one. `ttl_s`, `mode`, `run`: as for `Session.open`.

        What an agent raises is its result's `error`, its session has no reward, and the others continue. A cancelled run closes its
        sessions, without a reward. It can't stop a function that isn't async, but such a function's next model call fails.

        Raises InputError for a bad argument, NotReadyError if Kafka doesn't answer, and the first error if no session could be opened.
        """
        agents = AgentRun(
            self.settings, agent, samples=samples, concurrency=concurrency, mode=mode, ttl_s=ttl_s, run=run
        )
        return await agents.results(tasks, task_id)

    async def feed(
        self,
        requests: AsyncIterable[TaskRequest],
        table: SessionTable,
        *,
        max_in_flight: int,
        on_sent: Callable[[TaskRequest, int], None],
        stop_at_refusal: bool = True,
    ) -> None:
        """Produce tasks as they come, each once at most `max_in_flight` sessions of this feed are unfinished with it.

        The files of each are stored as in `submit`.
        `table` follows all tasks, since nobody knows which will come. A task that had finished before counts as finished, so a feed
        may start again from its beginning. `on_sent` gets each task and the number of unfinished sessions, including its own. There is
        no deadline: the coordinator ends every session. Raises InputError for a task with more than `max_in_flight` samples, for a
        body that is too large and for an id in use by another body, and TaskRefusedError as soon as the system refuses a task;
        without `stop_at_refusal` the feed goes on, and `table.refusals` has the refused tasks.
        Raises NotReadyError if Kafka doesn't acknowledge a task. Tasks sent before an error stay sent.

        After the last task, waits up to ANSWER_S for a coordinator to show those that it hasn't shown, or for their refusal.
        """
        waiting: dict[str, tuple[int, str]] = {}
        """Number of samples and body hash of unfinished tasks, by id."""

        def unfinished() -> int:
            refusals = [table.refusals[task_id] for task_id in waiting if task_id in table.refusals]
            if refusals and stop_at_refusal:
                raise TaskRefusedError(refusals)
            for task_id in [task_id for task_id in waiting if table.is_over(task_id)]:
                del waiting[task_id]
            return sum(samples - len(table.ended(task_id)) for task_id, (samples, _) in waiting.items())

        def has_room(samples: int) -> bool:
            return unfinished() + samples <= max_in_flight

        def all_shown() -> bool:
            return unfinished() == 0 or all(
                _is_shown(table, task_id, expected) for task_id, (_, expected) in waiting.items()
            )

        topic = tasks.TOPIC.full_name(self.settings.namespace)
        uploads = Uploads(blob_store.of(self.settings))
        async with self._producer() as producer:
            async for task in requests:
                request = await asyncio.to_thread(uploads.with_content, task, Path())
                samples = request.num_samples
                if samples > max_in_flight:
                    field = f"{request.task_id}: num_samples"
                    raise InputError(field, samples, f"more than {max_in_flight} sessions in flight; allow more")
                body = await asyncio.to_thread(sized_body, request)
                expected = body_hash(body)
                _is_shown(table, request.task_id, expected)  # raises InputError for an id in use
                await table.until(partial(has_room, samples), None)
                table.expect({request.task_id: expected})
                try:
                    await producer.send_bytes(topic, body, key=request.task_id.encode(), headers=[], deadline_s=SEND_S)
                except UnacknowledgedError as error:
                    raise NotReadyError(
                        f"Kafka didn't acknowledge task {request.task_id}: {error}; feed the tasks again, none runs twice"
                    ) from None
                waiting[request.task_id] = samples, expected
                on_sent(request, unfinished())
        await table.until(all_shown, ANSWER_S)

    async def unserved(self, pools: Collection[str]) -> dict[str, list[Stage]]:
        """The stages that no live worker serves now, by pool; pools that are served in every stage are left out."""
        leases = Leases()
        serving: dict[str, set[tuple[str, Stage]]] = {}

        def on_sign(sign: workers.Sign, record: Record) -> None:
            for worker_id in leases.tick(record.timestamp):
                del serving[worker_id]
            if not isinstance(sign, workers.Heartbeat):
                return
            if not sign.leaving:
                leases.renew(sign.worker_id)
                serving[sign.worker_id] = {(slots.pool, slots.stage) for slots in sign.stages}
            elif sign.worker_id in leases:
                leases.end(sign.worker_id)
                del serving[sign.worker_id]

        follower = Follower(self.settings, workers.TOPIC, on_sign, since=Since.ago(HEARTBEATS_FROM_S))
        await follower.start()
        await follower.stop()
        served = set().union(*serving.values())
        missing = {pool: [stage for stage in Stage if (pool, stage) not in served] for pool in sorted(pools)}
        return {pool: stages for pool, stages in missing.items() if stages}

    async def cancel(self, name: str) -> None:
        """Request the end of a task, or of one session of it, known to the coordinator or not. Raises NotReadyError."""
        is_session = "." in name
        task_id = task_id_of(name) if is_session else name
        fact = events.CancelRequested(uuid.uuid4().hex, task_id, name if is_session else None)
        await require_topic(self.settings, events.TOPIC)
        async with self._producer() as producer:
            try:
                await producer.send(events.TOPIC, fact, key=events.key_of(fact), task_id=task_id, deadline_s=SEND_S)
            except UnacknowledgedError as error:
                raise NotReadyError(f"Kafka didn't acknowledge the request: {error}") from None

    async def unless_gone(self, waiting: Coroutine[Any, Any, None], *, gone_s: float = GONE_S) -> None:
        """Await `waiting`. If Kafka stays away for `gone_s` meanwhile, cancel it and raise NotReadyError."""
        task = asyncio.create_task(waiting, name="wait")
        answered_at = time.monotonic()
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=min(KAFKA_CHECK_S, gone_s))
                with suppress(NotReadyError):
                    await require_topic(self.settings, sessions.TOPIC)
                    answered_at = time.monotonic()
                if not task.done() and time.monotonic() - answered_at > gone_s:
                    raise NotReadyError(
                        f"Kafka at {self.settings.bootstrap} has been away for {gone_s:.0f} s; the tasks continue when it is back "
                        "(`polar status`)"
                    )
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _complete(self, requests: Sequence[TaskRequest]) -> dict[str, TaskRequest]:
        """The tasks by id, with their files stored. Raises InputError for two tasks of one id, and what `submit` raises for files."""
        uploads = Uploads(blob_store.of(self.settings))
        complete: dict[str, TaskRequest] = {}
        for request in requests:
            stored = await asyncio.to_thread(uploads.with_content, request, Path())
            if complete.setdefault(stored.task_id, stored) != stored:
                raise InputError("task_id", stored.task_id, "another body of this submission has the same id")
        return complete

    @asynccontextmanager
    async def _table(self, task_ids: Collection[str], table: SessionTable | None = None) -> AsyncIterator[SessionTable]:
        """`table`, or the client's own inside `async with`, otherwise one for these tasks, for the time of the context."""
        if (known := table or self._shared) is not None:
            yield known
            return
        async with self.table(task_ids) as opened:
            yield opened

    async def _produce(self, bodies: Mapping[str, bytes]) -> None:
        topic = tasks.TOPIC.full_name(self.settings.namespace)
        items = list(bodies.items())
        sent = 0
        async with self._producer() as producer:
            try:
                for first in range(0, len(items), AT_ONCE):
                    chunk = items[first : first + AT_ONCE]
                    sends = (
                        producer.send_bytes(topic, body, key=task_id.encode(), headers=[], deadline_s=SEND_S)
                        for task_id, body in chunk
                    )
                    await asyncio.gather(*sends)
                    sent += len(chunk)
            except UnacknowledgedError as error:
                raise NotReadyError(
                    f"Kafka acknowledged {sent} of {len(items)} tasks, then: {error}; submit them again, none runs twice"
                ) from None

    @asynccontextmanager
    async def _producer(self) -> AsyncIterator[LogProducer]:
        producer = LogProducer(self.settings)
        await producer.start()
        try:
            yield producer
        finally:
            await producer.stop()


def _is_shown(table: SessionTable, task_id: str, expected: str) -> bool:
    """True if the table shows the task with this body. Raises InputError if it shows another body."""
    shown = table.shown_hash(task_id)
    if shown is None:
        return False
    if shown != expected:
        raise InputError("task_id", task_id, "already used with another body; choose a new id")
    return True
