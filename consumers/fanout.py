"""Fanout reads `polar.tasks`, which users write, and turns each valid TaskRequest into a `TaskSubmitted` fact.

Group `<namespace>.fanout`. In: `polar.tasks`, JSON from any producer. Out: `polar.events`; dead letters. Offsets are committed when a
whole batch is acknowledged. A crash before that submits the batch again, with the same fact ids and bodies, which changes nothing. No
record stops the process: a record that isn't a TaskRequest goes to the dead letters with the field and the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NoReturn

import structlog

from consumers.metrics import Metrics
from topics import events, tasks, trajectories
from topics.environment import blob_store
from topics.environment.blobs import BlobStoreError
from topics.environment.settings import Settings
from topics.events import TaskSubmitted
from topics.log import admin, kafka, membership
from topics.log.heartbeat import HeartbeatSender, new_worker_id
from topics.log.lag import Lag
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError, dead_letter
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Plan
from topics.types.task import TaskRequest, body_hash, parse
from topics.waiting.first_done import first_done
from topics.workers import Heartbeat

GROUP = "fanout"
POLL_MS = 500
BATCH = 100
"""Records whose facts are sent at the same time."""
SEND_S = 30.0
RETRY_S = 1.0
COMMIT_S = 5.0
STOP_S = 2.0

log = structlog.get_logger()


async def run_fanout(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Submit tasks until `stop`. Raises NotReadyError without Kafka."""
    worker_id = new_worker_id(GROUP)
    producer = LogProducer(settings)
    fanout = Fanout(settings, producer)

    def beat() -> Heartbeat:
        return HeartbeatSender.heartbeat(worker_id, GROUP, leaving=stop.is_set(), obstacle=fanout.obstacle)

    heart = HeartbeatSender(settings, beat)
    try:
        await producer.start()
        heart.start()
        fanout.register(metrics or Metrics(), heart)
        topic = tasks.TOPIC.full_name(settings.namespace)
        await membership.consume(settings, GROUP, [topic], partial(_submit_batches, fanout, stop), stop)
    finally:
        await asyncio.gather(producer.stop(STOP_S), asyncio.to_thread(heart.stop))


async def _submit_batches(fanout: Fanout, stop: asyncio.Event, consumer: kafka.Consumer) -> None:
    while not stop.is_set():
        batch = await consumer.getmany(timeout_ms=POLL_MS, max_records=BATCH)
        fanout.reads(consumer.assignment(), {partition: records[0].offset for partition, records in batch.items()})
        submitting = fanout.submit_all([record for records in batch.values() for record in records])
        if submitting not in await first_done(submitting, stop):
            return
        if batch:
            ends = {partition: records[-1].offset + 1 for partition, records in batch.items()}
            async with asyncio.timeout(COMMIT_S):
                await consumer.commit(ends)
            fanout.reads(consumer.assignment(), ends)


class Fanout:
    """Submits records, and creates each named output topic once."""

    def __init__(self, settings: Settings, producer: LogProducer) -> None:
        self._settings = settings
        self._log = producer
        self._blobs = blob_store.of(settings)
        self._outputs: set[str] = set()
        self._results: Counter[str] = Counter()
        """Records by result."""
        self._next: dict[kafka.TopicPartition, int] = {}
        """The offset after the last submitted record, of partitions that had records since they were assigned."""
        self._unwritten: dict[str, OSError] = {}
        """Why tasks that wait couldn't be stored, by their place on the log."""

    @property
    def obstacle(self) -> str:
        """A sentence on why tasks wait for the blob store; empty if none does."""
        error = next(iter(self._unwritten.values()), None)
        if error is None:
            return ""
        remedy = "" if isinstance(error, BlobStoreError) else "; make room, or mount the disk writable"
        return f"new tasks wait: {error}{remedy}"

    def register(self, metrics: Metrics, heart: HeartbeatSender) -> None:
        metrics.heart(GROUP, heart)
        metrics.lag(GROUP, Lag(self._settings, lambda: self._next))
        metrics.counter("polar_tasks", "Task requests read, by result", ("became",), lambda: self._results)

    def reads(self, assigned: Collection[kafka.TopicPartition], offsets: Mapping[kafka.TopicPartition, int]) -> None:
        """Take note of the assigned partitions and of the offsets that are read next."""
        self._next = {source: at for source, at in (self._next | dict(offsets)).items() if source in assigned}

    async def submit_all(self, records: Sequence[kafka.Record]) -> None:
        """Submit records concurrently."""
        await asyncio.gather(*map(self.submit, records))

    async def submit(self, record: kafka.Record) -> None:
        """Return when the record's fact, or its dead letter, is acknowledged, however long that takes."""
        try:
            while True:
                try:
                    return await self._submit(record)
                except (UnacknowledgedError, NotReadyError, OSError) as error:
                    log.warning("task not submitted yet", action="fanout.retry", at=_at(record), why=str(error))
                    if isinstance(error, OSError):
                        self._unwritten[_at(record)] = error
                    await asyncio.sleep(RETRY_S)
        finally:
            self._unwritten.pop(_at(record), None)

    async def _submit(self, record: kafka.Record) -> None:
        try:
            task = read(record.value)
            await self._ensure_output(task.output)
            fact = await self._fact(record, task)
            await self._log.send(events.TOPIC, fact, key=fact.task_id, task_id=fact.task_id, deadline_s=SEND_S)
            self._results["submitted"] += 1
        except InputError as error:
            await self._dead_letter(record, f"{error.reason} (got {error.value})", error.field)
        except RecordTooLargeError as error:
            await self._dead_letter(record, str(error), "metadata")

    async def _fact(self, record: kafka.Record, task: TaskRequest) -> TaskSubmitted:
        body = task.canonical()
        inline = len(body) <= tasks.INLINE_LIMIT
        return TaskSubmitted(
            # From the record's offset: a batch that is read again gives the same facts.
            f"task.{record.partition}.{record.offset}",
            task.task_id,
            task.num_samples,
            body_hash(body),
            plan_of(task),
            body=body if inline else None,
            body_ref=None if inline else (await asyncio.to_thread(self._blobs.put, body)).ref,
        )

    async def _ensure_output(self, output: str | None) -> None:
        """Create a named trajectories topic (protocol 31). Raises InputError if the broker refuses it, NotReadyError without a broker."""
        if output is None or output in self._outputs:
            return
        await admin.apply(self._settings, [trajectories.topic(output)], embedded=self._settings.replication == 1)
        self._outputs.add(output)

    async def _dead_letter(self, record: kafka.Record, reason: str, field: str) -> None:
        log.warning("bad task", action="fanout.dead_letter", at=_at(record), field=field)
        await dead_letter(self._log, self._settings, record, reason=reason, field=field, process=GROUP)
        self._results["dead_letter"] += 1


def read(value: bytes | None) -> TaskRequest:
    """The TaskRequest in a record's value. Raises InputError for any other value."""
    try:
        task = parse(json.loads((value or b"").decode("utf-8-sig"), parse_constant=_refuse_constant))
        task.check_uploads()
        task.canonical()
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError("task", (value or b"")[error.start :][:8], f"isn't UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError as error:
        raise InputError("task", error.object[error.start : error.end], "half of a surrogate pair is no text") from None
    except RecursionError:
        raise InputError("task", (value or b"")[:40], "is nested too deeply") from None
    except ValueError as error:
        raise InputError("task", (value or b"")[:40], f"isn't JSON: {error}") from None
    return task


def plan_of(task: TaskRequest) -> Plan:
    """The fields of a task that the coordinator needs."""
    return Plan(
        pool=task.runtime.pool,
        priority=task.priority,
        max_attempts=task.max_attempts,
        init_budget_s=task.timeouts.init,
        run_budget_s=task.run_budget_s,
        evaluate_budget_s=task.timeouts.evaluate,
        harness=task.agent.name,
        builder=task.builder.strategy,
        builder_config=json.dumps(task.builder.config).encode(),
        output=task.output,
        mode=task.mode,
        metadata=json.dumps(task.model_dump(mode="json", include={"metadata"})["metadata"]).encode(),
        user=task.user,
        usable=task.early_stop.usable if task.early_stop else None,
        callback_url=task.callback_url,
        run=task.run,
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _at(record: kafka.Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"
