"""One partition's coordinator: facts in, decisions committed, commands out.

A transaction holds rows of `polar.sessions` with the next offset of `polar.events` (the position, so that nothing is decided twice),
and `Open`, `Build`, `CloseGroup` on `polar.completions`, all of this partition's number. Tickets, grants, revokes and closed keys go
out after the commit. A crash costs what had not been committed, which the next owner decides anew from the log, and commands not yet
sent, which it repeats from the table.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
from msgspec.structs import replace

from consumers.coordinator.borrower import Borrower
from consumers.coordinator.commands import (
    Batch,
    ClaimLost,
    Command,
    DeadlinePassed,
    FleetPaused,
    FleetResumed,
    Input,
    PoolDark,
    RejectTask,
    ReleaseTicket,
    TaskForgotten,
)
from consumers.coordinator.deadlines import Pauses, budget_s
from consumers.coordinator.decide import decide
from consumers.coordinator.endings import said_again
from consumers.coordinator.fleet import FleetView
from consumers.coordinator.leases import Leases
from consumers.coordinator.ledger import Ledger
from consumers.coordinator.state import Table
from polar.settings import Settings
from polar.types.session import SessionState, TaskState
from topics import completions, control, dead_letters, events, kafka, sessions, stages
from topics.codec import DecodeError, UnknownRecord, encode
from topics.completions import CloseGroup, Open
from topics.control import CloseKey, Discard, Grant, Revoke
from topics.events import (
    Claimed,
    Evaluated,
    HandedBack,
    InitFinished,
    RunFinished,
    Stopped,
)
from topics.owner import (
    STOP_DEADLINE_S,
    FencedProducer,
    OwnershipLost,
    Write,
    read_back,
)
from topics.producer import LogProducer, Unacknowledged, dead_letter
from topics.sessions import Position
from topics.stages import Ticket

FACTS = 500
"""A transaction's facts at most (protocol 3)."""
FETCH_MS = 500
JUDGE_S = 0.25
"""How often leases and deadlines are looked at."""
REPEAT_S = 300.0
"""How often the ends of keys are said again: half of what a starting proxy reads of `polar.control` (protocol 2, 18)."""
REPEATED = 500
"""Sessions a step of which that is said."""
POSITION_S = 5.0
"""How often position and clock are written where facts changed nothing."""
CLOCK_MS = 60_000
"""The same where no facts came: so much longer may a session live whose coordinator starts again."""
ENDS_OF_CLAIMS = InitFinished, RunFinished, Evaluated, Stopped, HandedBack
"""Facts after which a claim has no slot."""

T = TypeVar("T")
log = structlog.get_logger()


class Keeper:
    """Owns one partition from its table's recovery until it is cancelled or fenced."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        fenced: FencedProducer,
        producer: LogProducer,
        leases: Leases,
        ledger: Ledger,
        lend_now: Callable[[], None],
        fleet: FleetView,
    ) -> None:
        self.table = Table(partition)
        self._settings = settings
        self._partition = partition
        self._fenced = fenced
        self._producer = producer
        self._leases = leases
        self._ledger = ledger
        self._lend_now = lend_now
        self._fleet = fleet
        self._woken = asyncio.Event()
        self.borrower = Borrower(partition, self.table.waiting, ledger, self._woken.set)
        self._position = 0
        self._clock_base = 0
        self._written_at = 0.0
        self._written_clock = 0
        self._written_position = 0
        self._caught_up = False
        self._judged_at = 0.0
        self._repeated_at = -REPEAT_S
        self._to_repeat: list[str] = []
        self.facts = 0
        """Read so far."""
        self.skipped: Counter[str] = Counter()
        """Inputs that the table didn't allow, by reason (protocol 6)."""

    # --- its life

    async def run(self) -> None:
        await self._recover()
        consumer = kafka.consumer(self._settings)
        await consumer.start()
        source = kafka.TopicPartition(events.TOPIC.full_name(self._settings.namespace), self._partition)
        consumer.assign([source])
        consumer.seek(source, self._position)
        fetch: asyncio.Task[dict[kafka.TopicPartition, list[kafka.Record]]] | None = None
        try:
            while True:
                fetch = fetch or asyncio.create_task(
                    consumer.getmany(timeout_ms=FETCH_MS, max_records=FACTS),
                    name=f"coordinator.fetch.{self._partition}",
                )
                await self._until_something(fetch)
                records: Sequence[kafka.Record] = ()
                if fetch.done():
                    records = fetch.result().get(source, ())
                    end = consumer.highwater(source)
                    self._caught_up = end is not None and await consumer.position(source) >= end
                    fetch = None
                await self._step(records)
        finally:
            if fetch is not None:
                fetch.cancel()
            await kafka.stop(consumer, STOP_DEADLINE_S)

    async def _until_something(self, fetch: asyncio.Task[T]) -> None:
        woken = asyncio.create_task(self._woken.wait(), name=f"coordinator.woken.{self._partition}")
        try:
            await asyncio.wait({fetch, woken}, timeout=JUDGE_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        self._woken.clear()

    async def _recover(self) -> None:
        """The table as the last owner committed it; its open transaction, if any, was ended by our fencing."""
        topic = sessions.TOPIC.full_name(self._settings.namespace)
        rows: dict[str, TaskState | SessionState] = {}
        async for record in read_back(self._settings, topic, self._partition):
            key = (record.key or b"").decode(errors="replace")
            if record.value is None:
                rows.pop(key, None)
                continue
            try:
                row = sessions.CODEC.decode(record.value)
            except DecodeError as error:
                await self._dead_letter(record, str(error))
                continue
            match row:
                case Position():
                    self._position = row.next_offset
                    self._clock_base = row.clock_ms - self._leases.now(time.monotonic())
                    self.table.pauses = Pauses(row.paused_ms)
                case UnknownRecord():
                    self.skipped[f"unknown_{row.type}"] += 1
                case _:
                    rows[key] = row
        self.table.fill(rows.values())
        self.borrower.is_open = True
        self._written_clock = self._now()
        self._written_position = self._position
        log.info(
            "partition owned",
            action="coordinator.owned",
            partition=self._partition,
            position=self._position,
            sessions=len(self.table.sessions()),
        )

    async def _repeat(self) -> None:
        """Say again what is due: the last owner may not have sent it, and a proxy that starts reads only so far back.

        A few sessions a step: a table of a hundred thousand must not hold up its facts.
        """
        if time.monotonic() - self._repeated_at > REPEAT_S:
            self._repeated_at = time.monotonic()
            self._to_repeat = [session.session_id for session in self.table.sessions()]
        some, self._to_repeat = self._to_repeat[-REPEATED:], self._to_repeat[:-REPEATED]
        await self._send([due for name in some if (session := self.table.session(name)) for due in said_again(session)])
        if self._to_repeat:
            self._woken.set()

    # --- one step

    def _now(self) -> int:
        return self._clock_base + self._leases.now(time.monotonic())

    async def _step(self, records: Sequence[kafka.Record]) -> None:
        batch = Batch()
        if self._fleet.paused != (self.table.pauses.began is not None):
            self._take(FleetPaused() if self._fleet.paused else FleetResumed(), batch)
        for record in records:
            self.facts += 1
            fact = await self._decoded(record)
            if fact is not None:
                self._take(fact, batch)
            self._position = record.offset + 1
        for given in self._judged():
            self._take(given, batch)
        if not batch.is_empty:
            # The slots that these facts set free, and the sessions that they make wait, meet in this very transaction.
            self._lend_now()
        while (slot := self.borrower.slot) is not None:
            self._take(slot, batch)
            self.borrower.decided()
        if not batch.is_empty or self._position_due():
            await self._commit(batch)
        await self._send(batch.commands)
        await self._repeat()

    def _take(self, given: Input, batch: Batch) -> None:
        decision = decide(self.table, given, self._now())
        self.table.apply(decision)
        batch.add(decision)
        if decision.skipped is not None:
            self.skipped[decision.skipped] += 1
            log.debug("skipped", action="coordinator.skipped", reason=decision.skipped, partition=self._partition)
        if isinstance(given, Claimed):
            self._ledger.claimed(given.session_id, given.stage, given.worker_id, given.claim_id, self._leases.clock)
        elif isinstance(given, ENDS_OF_CLAIMS):
            self._ledger.over(given.session_id, given.claim_id, self._leases.clock)
        for command in decision.commands:
            if isinstance(command, ReleaseTicket):
                self._ledger.released(command, self._leases.clock)

    def _judged(self) -> list[Input]:
        """What time alone has brought about. Leases are judged only once the log is read to its end: the fact may be on it."""
        now = self._now()
        given: list[Input] = [DeadlinePassed(session_id) for session_id in self.table.due(now)]
        given += [TaskForgotten(task_id) for task_id in self.table.forgettable(now)]
        if not self._caught_up or time.monotonic() - self._judged_at < JUDGE_S:
            return given
        self._judged_at = time.monotonic()
        for sessions_in_hand in self.table.in_hand().values():
            for session in sessions_in_hand:
                if session.claim_id is not None and self._leases.is_lost(session):
                    given.append(ClaimLost(session.session_id, session.claim_id))
        for session in self.table.ready():
            plan = self.table.task_of(session).plan
            if plan is not None and self._leases.is_dark(plan.pool):
                given.append(PoolDark(session.session_id))
        return given

    async def _decoded(self, record: kafka.Record) -> events.Fact | None:
        try:
            fact = events.CODEC.decode(record.value or b"")
        except DecodeError as error:
            await self._dead_letter(record, str(error))
            return None
        if isinstance(fact, UnknownRecord):
            self.skipped[f"unknown_{fact.type}"] += 1
            return None
        return fact

    # --- out

    def _position_due(self) -> bool:
        moved = self._position - self._written_position
        if self.table.awaited and self._now() - self._written_clock >= CLOCK_MS:
            return True
        return moved >= FACTS or (moved > 0 and time.monotonic() - self._written_at > POSITION_S)

    async def _commit(self, batch: Batch) -> None:
        """1. Records of `polar.completions`; their offsets fill the rows and grants. 2. Rows. 3. Position. 4. Commit, or all is void."""
        await self._fenced.begin()
        offsets = await self._fenced.write([self._completion(record) for record in batch.records])
        for record, offset in zip(batch.records, offsets, strict=True):
            if isinstance(record, Open):
                self._opened(record, offset, batch)
        rows: list[sessions.Row] = [*batch.tasks.values(), *batch.sessions.values()]
        clock_ms = self._now()
        rows.append(Position(self._position, clock_ms, self.table.pauses.total_ms(clock_ms)))
        topic = sessions.TOPIC.full_name(self._settings.namespace)
        writes = [Write(topic, self._partition, key.encode(), None) for key in batch.forgotten]
        writes += [Write(topic, self._partition, sessions.key_of(row).encode(), encode(row)) for row in rows]
        await self._fenced.write(writes)
        await self._fenced.commit()
        self._written_position = self._position
        self._written_clock = clock_ms
        self._written_at = time.monotonic()

    def _opened(self, opened: Open, offset: int, batch: Batch) -> None:
        """The row of the run that this opens learns where its log begins, unless the same batch has led it on."""
        session = batch.sessions[opened.session_id]
        if session.run_claim_id == opened.claim_id:
            batch.sessions[session.session_id] = located = replace(session, log_offset=offset)
            self.table.load(located)

    def _completion(self, record: Open | completions.Build | CloseGroup) -> Write:
        topic = completions.TOPIC.full_name(self._settings.namespace)
        key = record.task_id if isinstance(record, CloseGroup) else record.session_id
        return Write(topic, self._partition, key.encode(), encode(record))

    async def _send(self, commands: Sequence[Command]) -> None:
        """Idempotent, after the commit; one that can't be sent voids this partition, whose next owner repeats what is due."""
        try:
            await asyncio.gather(*(self._send_one(command) for command in commands))
        except Unacknowledged as error:
            raise OwnershipLost(f"a command could not be sent: {error}") from error

    async def _send_one(self, command: Command) -> None:
        match command:
            case ReleaseTicket():
                session = self.table.session(command.session_id)
                if session is not None:
                    await self._release(command, session)
            case Grant(log_partition=int(), log_offset=None):
                # Decided before the broker had given its Open an offset.
                session = self.table.session(command.session_id)
                if session is not None and session.claim_id == command.claim_id:
                    await self._control(replace(command, log_offset=session.log_offset))
            case RejectTask():
                await self._reject(command)
            case _:
                await self._control(command)

    async def _release(self, command: ReleaseTicket, session: SessionState) -> None:
        task = self.table.task_of(session)
        assert task.plan is not None, "a session's task is known"
        ticket = Ticket(
            session.session_id,
            session.sample_index,
            session.attempt,
            command.stage,
            budget_s(command.stage, task),
            body=task.body,
            body_ref=task.body_ref,
            runtime=session.runtime,
            run_claim_id=session.run_claim_id,
            status=session.status,
            exit_code=session.exit_code,
            error=session.error,
        )
        topic = stages.topic(command.stage, task.plan.pool)
        await self._producer.send(topic, ticket, key=session.session_id, partition=command.queue_partition)

    async def _control(self, command: Grant | Revoke | CloseKey | Discard) -> None:
        await self._producer.send(control.TOPIC, command, key=command.session_id)

    async def _reject(self, command: RejectTask) -> None:
        body = command.fact.body or (command.fact.body_ref or "").encode()
        log.warning("task refused", action="coordinator.refused", task=command.fact.task_id, reason=command.reason)
        await self._producer.send_bytes(
            dead_letters.TOPIC.full_name(self._settings.namespace),
            body,
            key=command.fact.task_id.encode(),
            headers=dead_letters.headers(
                reason=command.reason,
                field="task_id",
                process="coordinator",
                topic=events.TOPIC.full_name(self._settings.namespace),
                partition=self._partition,
                offset=self._position,
            ),
        )

    async def _dead_letter(self, record: kafka.Record, reason: str) -> None:
        log.warning(
            "dead letter",
            action="coordinator.dead_letter",
            partition=self._partition,
            offset=record.offset,
            reason=reason,
        )
        await dead_letter(self._producer, self._settings, record, reason=reason, process="coordinator")
