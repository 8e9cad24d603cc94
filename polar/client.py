"""`Client`, for programs that produce tasks: submit them, follow the coordinator's table, cancel.

A client writes `polar.tasks` and `CancelRequested`. It reads their outcome from committed rows of `polar.sessions`, and refused tasks from
`polar.dead-letters`. Trajectories are read by `polar.trainer`, and every decision about a task is the coordinator's.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from polar.uploads import Uploads
from topics import dead_letters, events, sessions, tasks, workers
from topics.contract.topic import Topic
from topics.dead_letters import Letter
from topics.environment import blob_store
from topics.environment.settings import Settings, load
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.log.liveness import Leases
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Phase, SessionState, Stage, TaskState, task_id_of
from topics.types.task import TaskRequest, body_hash, check_settings, check_version
from topics.waiting.first_done import first_done

BODY_LIMIT = tasks.TOPIC.max_bytes - 64 * 1024
"""Most bytes of a canonical body. The remaining 64 KiB are room for its batch and headers."""
ANSWER_S = 10.0
"""How long `submit` waits for a coordinator to show its tasks: a coordinator shows a task within a second."""
SEND_S = 30.0
"""Deadline of one acknowledgement: longer than an election of a partition's leader."""
TABLE_S = 300.0
"""Deadline for reading the whole table: a million sessions take about a minute."""
KAFKA_CHECK_S = 15.0
"""How often a long wait checks that Kafka can still be reached."""
GONE_S = 120.0
"""How long Kafka may be away before a wait ends: longer than a broker's restart."""
AT_ONCE = 100
"""Tasks sent before their acknowledgements are awaited."""
HEARTBEATS_FROM_S = 10.0
"""How far back `polar.workers` is read to find live workers (protocol 30)."""


@dataclass(frozen=True)
class Refusal:
    """A submitted task that became a dead letter instead of sessions."""

    task_id: str
    letter_id: int
    """`polar dead-letters show` prints it."""
    process: str
    """Who refused it."""
    field: str
    """The invalid field; empty if none is to blame."""
    reason: str

    def __str__(self) -> str:
        field = f"{self.field}: " if self.field else ""
        return f"{self.task_id}: {self.process} refused it: {field}{self.reason}"


class TaskRefusedError(InputError):
    """Tasks were submitted and refused; the other tasks of the submission go on."""

    def __init__(self, refusals: Sequence[Refusal], unanswered: Sequence[str] = ()) -> None:
        """`unanswered`: other ids that no coordinator has shown yet."""
        first = refusals[0]
        super().__init__(first.field or "task_id", first.task_id, first.reason)
        self.args = ("; ".join(map(str, refusals)),)
        self.refusals = list(refusals)
        self.unanswered = list(unanswered)


class SessionTable:
    """A live copy of the coordinator's rows for some tasks, or for all. Inside `async with` it is complete and follows every change."""

    def __init__(
        self, settings: Settings, task_ids: Collection[str] | None = None, *, with_refusals: bool = False
    ) -> None:
        """`with_refusals`: also read which tasks that `expect` names are refused."""
        self.tasks: dict[str, TaskState] = {}
        self.sessions: dict[str, dict[int, SessionState]] = {}
        """By task id and sample index."""
        self.refusals: dict[str, Refusal] = {}
        """By task id."""
        self._expected: dict[str, str] = {}
        """Body hashes of submitted tasks, by task id."""
        self._ended: Counter[str] = Counter()
        """Number of ended sessions by task id, so that `is_finished` is cheap: it is called at every change, for thousands of sessions."""
        self._settings = settings
        self._task_ids = task_ids
        self._changed = asyncio.Event()
        self._follower = Follower(
            settings,
            sessions.TOPIC,
            self._on_row,
            since=Since.BEGINNING,
            on_tombstone=self._on_tombstone,
            committed=True,
        )
        self._letters = (
            Follower(settings, dead_letters.TOPIC, self._on_letter, since=Since.END) if with_refusals else None
        )

    async def __aenter__(self) -> Self:
        await require_topic(self._settings, sessions.TOPIC)
        try:
            if self._letters is not None:
                await self._letters.start()
            await self._follower.start(TABLE_S)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as ends:  # all are stopped, even if this is cancelled
            for follower in self._followers:
                ends.push_async_callback(follower.stop)

    @property
    def _followers(self) -> list[Follower]:
        return [self._follower] if self._letters is None else [self._follower, self._letters]

    def expect(self, hashes: Mapping[str, str]) -> None:
        """Look out for refusals of these tasks (body hash by id); call it before they are sent."""
        self._expected.update(hashes)
        for task_id in hashes:
            self.refusals.pop(task_id, None)

    def ended(self, task_id: str) -> list[SessionState]:
        """The task's sessions whose trajectory has been written."""
        return [row for row in self.sessions.get(task_id, {}).values() if row.phase is Phase.ENDED]

    def is_finished(self, task_id: str) -> bool:
        """Whether every session of the task has its trajectory."""
        task = self.tasks.get(task_id)
        return task is not None and task.body_hash is not None and self._ended[task_id] == task.num_samples

    def is_over(self, task_id: str) -> bool:
        """Whether the task is finished, or was refused and never will be."""
        return task_id in self.refusals or self.is_finished(task_id)

    async def until(self, holds: Callable[[], bool], deadline_s: float | None) -> bool:
        """Wait until `holds()`, called after each change. False if the deadline passes. Raises the error that ended the reading."""
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not holds():
                    self._changed.clear()
                    await first_done(self._changed, *(follower.failed for follower in self._followers))
        return holds()

    def _on_row(self, row: sessions.Row, _: Record) -> None:
        match row:
            case TaskState() if self._is_wanted(row.task_id):
                self.tasks[row.task_id] = row
            case SessionState() if self._is_wanted(row.task_id):
                rows = self.sessions.setdefault(row.task_id, {})
                self._ended[row.task_id] += _has_ended(row) - _has_ended(rows.get(row.sample_index))
                rows[row.sample_index] = row
        self._changed.set()

    def _on_letter(self, _: bytes, record: Record) -> None:
        letter = dead_letters.parse(record)
        if not isinstance(letter, Letter):
            return
        task_id = (letter.key or b"").decode(errors="replace")
        # Another task of the same id may be the one that was refused.
        if task_id in self._expected and _refused_hash(letter) == self._expected[task_id]:
            self.refusals[task_id] = Refusal(task_id, letter.id, letter.process, letter.field, letter.reason)
            self._changed.set()

    def _is_wanted(self, task_id: str) -> bool:
        return self._task_ids is None or task_id in self._task_ids

    def _on_tombstone(self, record: Record) -> None:
        kind, _, name = (record.key or b"").decode(errors="replace").partition(":")
        if kind == "task":
            self.tasks.pop(name, None)
        elif kind == "session":
            row = self.sessions.get(task_id_of(name), {}).pop(int(name.rpartition(".")[2]), None)
            self._ended[task_id_of(name)] -= _has_ended(row)
        self._changed.set()


def _refused_hash(letter: Letter) -> str | None:
    """Body hash of the task that a letter refuses, as a request or as the fact that fanout made of it; None if it refuses none."""
    if letter.topic.endswith(f".{tasks.TOPIC.name}"):
        return body_hash(letter.value)
    fact = events.CODEC.known(letter.value) if letter.topic.endswith(f".{events.TOPIC.name}") else None
    return fact.body_hash if isinstance(fact, events.TaskSubmitted) else None


def _has_ended(row: SessionState | None) -> bool:
    return row is not None and row.phase is Phase.ENDED


class Client:
    """Submits tasks to one Polar system and cancels them. Stateless: each call has its own connection to Kafka."""

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings`: those of the system (`polar.load_settings`). None: the system that the `polar` command would find."""
        self.settings = settings or load()

    def table(self, task_ids: Collection[str] | None = None) -> SessionTable:
        """The coordinator's table for these tasks, or for all, with the refusals of those that are submitted with it."""
        return SessionTable(self.settings, task_ids, with_refusals=True)

    async def submit(
        self, requests: Sequence[TaskRequest], table: SessionTable, *, answer_s: float = ANSWER_S
    ) -> list[str]:
        """Produce all tasks, or none, and wait `answer_s` for a coordinator to show them. The ids that none has shown.

        The files that the tasks upload are stored first; relative sources start at the current folder. A task that was submitted before
        with an equal body is the same task. Raises InputError for a file that can't be uploaded, for a body that is too large, for
        settings that a plug-in refuses, and for an id in use by another body: before anything is sent, unless both bodies are submitted
        at the same time. Raises NotReadyError if files can't be stored, or Kafka doesn't acknowledge all tasks: submitting them again is
        safe. Raises TaskRefusedError, when the wait is over, for tasks that the system refuses; later refusals are in `table.refusals`.

        `table` is one of `Client.table`.
        """
        uploads = Uploads(blob_store.of(self.settings))
        complete = await asyncio.to_thread(lambda: [uploads.with_content(request, Path()) for request in requests])
        bodies = {request.task_id: await asyncio.to_thread(sized_body, request) for request in complete}
        hashes = {task_id: body_hash(body) for task_id, body in bodies.items()}

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


async def require_topic(settings: Settings, topic: Topic) -> None:
    """Raise NotReadyError at once if no Kafka answers or the topic doesn't exist: a later read would wait for either."""
    await admin.partition_count(settings, topic.full_name(settings.namespace), reach_s=0)


def sized_body(request: TaskRequest) -> bytes:
    """The canonical body. Raises InputError if it is too large, a plug-in refuses its settings, or a package index lacks its version.

    It may wait for the index for seconds.
    """
    check_settings(request)
    check_version(request)
    body = request.canonical()
    if len(body) > BODY_LIMIT:
        raise InputError(request.task_id, f"{len(body)} bytes", f"a task has at most {BODY_LIMIT} bytes")
    return body


def _is_shown(table: SessionTable, task_id: str, expected: str) -> bool:
    """True if the table shows the task with this body. Raises InputError if it shows another body."""
    task = table.tasks.get(task_id)
    if task is None or task.body_hash is None:
        return False
    if task.body_hash != expected:
        raise InputError("task_id", task_id, "already used with another body; choose a new id")
    return True
