"""Takes tickets of one stage and pool from their queue, each only if a slot is free (protocol 8), and of init only if the disk has room.

Group `<namespace>.<stage>.<pool>`. In: `polar.stage.<stage>.<pool>`. Out: `Claimed`, through `claim_runner`; dead letters. A ticket's
offset is committed after its `Claimed` is sent: a crash before the commit gives the ticket to another worker, a crash after it costs
the claim's lease. Commits are in order, because one ticket at a time is taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import structlog

from consumers.stages.claim_runner import Claim, ClaimRunner, Work
from topics import stages
from topics.contract.codec import DecodeError, UnknownRecord
from topics.environment.settings import Settings
from topics.log import kafka, membership
from topics.log.producer import LogProducer, UnacknowledgedError, dead_letter
from topics.types.session import Stage
from topics.workers import StageSlots

POLL_MS = 500
"""Longest wait for a ticket: a worker that leaves notices it after this long."""
FULL_S = 1.0
"""Between two polls of a full worker; polling keeps it in its group."""
FETCH_BYTES = 64 * 1024
"""Prefetched from one partition: a ticket that lies in a full worker's memory is lost time for everyone."""
COMMIT_S = 5.0
"""Limit for a commit. A commit that failed costs little: another worker's claim is then refused."""

log = structlog.get_logger()


class TicketQueue:
    """One stage's queue, and the slots that it feeds. `make_work` makes the stage's work for a claim."""

    def __init__(
        self,
        settings: Settings,
        stage: Stage,
        pool: str,
        slots: int,
        claims: ClaimRunner,
        producer: LogProducer,
        make_work: Callable[[Claim], Work],
        on_change: Callable[[], None],
        is_closed: Callable[[], bool],
    ) -> None:
        """`is_closed`: whether no ticket may be taken, whatever slots are free."""
        self.stage = stage
        self.pool = pool
        self.slots = slots
        self._settings = settings
        self._claims = claims
        self._log = producer
        self._make_work = make_work
        self._on_change = on_change
        self._is_closed = is_closed
        self._partitions: list[int] = []
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.taken = 0
        """Tickets since the start."""
        self.skipped: Counter[str] = Counter()
        """Records that aren't tickets, by reason: `undecodable` or `unknown_<type>`."""

    def stage_slots(self) -> StageSlots:
        """This stage's part of the heartbeat."""
        claims = self._claims.ids(self.stage)
        return StageSlots(self.stage, self.pool, self.slots, self.free, self._partitions, claims)

    @property
    def free(self) -> int:
        return 0 if self._is_closed() else self.slots - len(self._claims.ids(self.stage))

    def wake(self) -> None:
        """A slot may be free, or the worker leaves."""
        self._woken.set()

    def start(self, leaving: asyncio.Event) -> asyncio.Task[None]:
        """Take tickets until `leaving`; the task ends earlier only if it fails."""
        self._running = asyncio.create_task(self._run(leaving), name=f"queue-{self.stage.value}")
        return self._running

    async def ended(self, deadline_s: float | None = None) -> None:
        """Wait until the queue takes no more tickets, and cancel it after `deadline_s`."""
        if self._running is not None and not (await asyncio.wait({self._running}, timeout=deadline_s))[0]:
            self._running.cancel()
            await asyncio.wait({self._running})

    async def _run(self, leaving: asyncio.Event) -> None:
        async def take_all(consumer: kafka.Consumer) -> None:
            try:
                await self._take_all(consumer, leaving)
            finally:
                self._assigned(set())

        group, queue = f"{self.stage.value}.{self.pool}", stages.topic(self.stage, self.pool)
        name = queue.full_name(self._settings.namespace)
        await membership.consume(
            self._settings, group, [name], take_all, leaving, max_partition_fetch_bytes=FETCH_BYTES
        )

    async def _take_all(self, consumer: kafka.Consumer, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            assigned = consumer.assignment()
            self._assigned({tp.partition for tp in assigned})
            if self.free <= 0:
                await self._poll_full(consumer, assigned)
                continue
            consumer.resume(*assigned)
            found = await consumer.getmany(timeout_ms=POLL_MS, max_records=1)
            if leaving.is_set():
                return  # not committed: another worker takes it
            if self._is_closed():  # since the ticket came: another worker, or a later poll, takes it
                _put_back(consumer, found)
                continue
            for records in found.values():
                for record in records:
                    await self._take(consumer, record)

    async def _poll_full(self, consumer: kafka.Consumer, assigned: set[kafka.TopicPartition]) -> None:
        """Poll without taking a ticket, then wait for a free slot. Pauses each time, because a rebalance clears every pause."""
        self._woken.clear()
        consumer.pause(*assigned)
        # A rebalance between the two lines may let records through.
        _put_back(consumer, await consumer.getmany(timeout_ms=0, max_records=1))
        with suppress(TimeoutError):
            async with asyncio.timeout(FULL_S):
                await self._woken.wait()

    async def _take(self, consumer: kafka.Consumer, record: kafka.Record) -> None:
        try:
            ticket = stages.CODEC.decode(record.value or b"")
        except DecodeError as error:
            self.skipped["undecodable"] += 1
            await self._bury(record, str(error))
        else:
            if isinstance(ticket, UnknownRecord):
                self.skipped[f"unknown_{ticket.type}"] += 1
                log.info("unknown ticket", action="ticket.skipped", type=ticket.type, at=_at(record))
            else:
                self.taken += 1
                await self._claims.request(ticket, self._make_work)
        await self._commit(consumer, record)

    async def _bury(self, record: kafka.Record, reason: str) -> None:
        log.warning("bad ticket", action="ticket.dead_letter", at=_at(record), why=reason)
        try:
            await dead_letter(
                self._log,
                self._settings,
                record,
                reason=reason,
                process=f"{self.stage.value} worker of pool {self.pool}",
            )
        except UnacknowledgedError as error:
            log.error("dead letter lost", action="ticket.dead_letter_lost", at=_at(record), why=str(error))

    async def _commit(self, consumer: kafka.Consumer, record: kafka.Record) -> None:
        """After a failed commit another worker reads the ticket too, and its claim is refused."""
        partition = kafka.TopicPartition(record.topic, record.partition)
        try:
            async with asyncio.timeout(COMMIT_S):
                await consumer.commit({partition: record.offset + 1})
        except (kafka.KafkaError, TimeoutError) as error:
            log.info("ticket not committed", action="ticket.uncommitted", at=_at(record), why=repr(error))

    def _assigned(self, partitions: set[int]) -> None:
        if sorted(partitions) != self._partitions:
            self._partitions = sorted(partitions)
            self._on_change()


def _put_back(consumer: kafka.Consumer, found: Mapping[kafka.TopicPartition, Sequence[kafka.Record]]) -> None:
    for partition, records in found.items():
        consumer.seek(partition, records[0].offset)


def _at(record: kafka.Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"
