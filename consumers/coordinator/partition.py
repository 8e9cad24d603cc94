"""One partition's coordinator: reads facts, commits decisions, sends commands.

A transaction holds rows of `polar.sessions`, records of `polar.completions` (`Open`, `Build`, `CloseGroup`), and the position: the next
offset of `polar.events`, so that no fact is decided twice. All are of this partition's number. `batch` splits decisions that are too
large. Tickets, grants, revokes and closed keys are sent after the commit (`command_sender`). A crash loses what wasn't committed, which
the next owner decides again from the log, and commands not yet sent, which the next owner repeats from the table.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import replace

from consumers.coordinator import commands
from consumers.coordinator.batch import Batch, Transaction
from consumers.coordinator.claim_proofs import is_proven
from consumers.coordinator.command_sender import CommandSender
from consumers.coordinator.commands import Input
from consumers.coordinator.deadlines import Pauses
from consumers.coordinator.decide import decide
from consumers.coordinator.endings import repeated_commands
from consumers.coordinator.leases import Leases
from consumers.coordinator.scheduling.demand import PartitionDemand
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.state import Table
from consumers.coordinator.witness import TableLostError, Witness
from topics import completions, events, sessions
from topics.completions import Open
from topics.contract.codec import DecodeError, UnknownRecord, encode
from topics.control import Revoke
from topics.environment.claim_keys import ClaimKeys
from topics.environment.settings import Settings
from topics.events import Claimed, ClaimFact, Evaluated, HandedBack, InitFinished, RunFinished, Stopped
from topics.fleet import FleetView
from topics.log import admin, kafka
from topics.log.owner import STOP_DEADLINE_S, FencedProducer, Write, position_within_log, read_back
from topics.log.partition import misplaced
from topics.log.producer import LogProducer
from topics.sessions import Position
from topics.types.session import SessionState, TaskState
from topics.waiting.first_done import first_done

FACTS = 500
"""At most this many facts in a transaction (protocol 3)."""
FETCH_MS = 500
"""The broker's longest wait for a first record."""
GAP_S = 0.01
"""Pause between two transactions: each costs the broker and us some 10 ms of CPU, however little it holds."""
GATHER_MS = 3
"""For the answer of a broker that has records."""
CHECK_S = 0.25
"""How often deadlines are checked."""
REPEAT_S = 300.0
"""How often the ends of keys are repeated: half of what a starting proxy reads of `polar.control` (protocol 2, 18)."""
REPEATED = 500
"""Sessions whose commands are repeated in one step, so that a table of a hundred thousand doesn't delay its facts."""
POSITION_S = 5.0
"""How often position and clock are written while facts change nothing."""
CLOCK_MS = 60_000
"""How often the clock is written while no facts come: a restart of the coordinator may prolong a session by this time."""
CLAIM_ENDS = InitFinished, RunFinished, Evaluated, Stopped, HandedBack
"""Facts after which a claim has no slot."""

log = structlog.get_logger()


class PartitionCoordinator:
    """Owns one partition from its table's recovery until it is cancelled or fenced."""

    def __init__(
        self,
        settings: Settings,
        partition: int,
        fenced: FencedProducer,
        producer: LogProducer,
        leases: Leases,
        free_slots: FreeSlots,
        assign_slots: Callable[[], None],
        fleet: FleetView,
        claim_keys: ClaimKeys,
    ) -> None:
        self.table = Table(partition)
        self._settings = settings
        self._partition = partition
        self._fenced = fenced
        self._sender = CommandSender(settings, producer, self.table, claim_keys)
        self._claim_keys = claim_keys
        self._batch = Batch()
        self._leases = leases
        self._free_slots = free_slots
        self._assign_slots = assign_slots
        self._fleet = fleet
        self._woken = asyncio.Event()
        self.demand = PartitionDemand(partition, self.table.queue, free_slots, self._woken.set)
        self._partitions = 0
        """Partition count of the co-partitioned topics."""
        self._position = 0
        self._clock_base = 0
        self._written_at = 0.0
        self._witness = Witness(settings, partition)
        self._table_end = 0
        """Offset after the newest record of the table that we have read or written."""
        self._written_clock = 0
        self._written_position = 0
        self._caught_up = False
        self.source = kafka.TopicPartition(events.TOPIC.full_name(settings.namespace), partition)
        self.read_to: int | None = None
        """The next offset of `source` that is read; None before the first read."""
        self._leases_checked_at = -1
        """Clock of the leases, which advances with each probe."""
        self._repeated_at = -REPEAT_S
        self._to_repeat: list[str] = []
        self.facts = 0
        """Number of facts read."""
        self.skipped: Counter[str] = Counter()
        """Inputs that the table didn't allow, by reason (protocol 6)."""

    async def run(self) -> None:
        await self._recover()
        source = self.source
        # Leases and deadlines make up for facts that have left the log, and facts that are read again change nothing (protocol 6).
        self._position = await position_within_log(self._settings, source, self._position)
        consumer = kafka.consumer(self._settings, auto_offset_reset="none")
        fetch: asyncio.Task[list[kafka.Record]] | None = None
        try:
            await consumer.start()
            consumer.assign([source])
            consumer.seek(source, self._position)
            while True:
                await asyncio.sleep(self._written_at + GAP_S - time.monotonic())
                fetch = fetch or asyncio.create_task(
                    _fetch(consumer, source), name=f"coordinator.fetch.{self._partition}"
                )
                await first_done(fetch, self._woken, timeout_s=CHECK_S)
                self._woken.clear()
                records: Sequence[kafka.Record] = ()
                if fetch.done():
                    records = fetch.result()
                    end = consumer.highwater(source)
                    self.read_to = await consumer.position(source)
                    self._caught_up = end is not None and self.read_to >= end
                    fetch = None
                await self._step(records)
        finally:
            if fetch is not None:
                fetch.cancel()
            await kafka.stop(consumer, STOP_DEADLINE_S)

    async def _recover(self) -> None:
        """Read the table that the last owner committed. Our fencing has ended its open transaction, if any."""
        self._partitions = await admin.copartitioned_count(
            self._settings, (events.TOPIC, sessions.TOPIC, completions.TOPIC)
        )
        topic = sessions.TOPIC.full_name(self._settings.namespace)
        rows: dict[str, TaskState | SessionState] = {}
        async for record in read_back(self._settings, topic, self._partition):
            self._table_end = record.offset + 1
            key = (record.key or b"").decode(errors="replace")
            if record.value is None:
                rows.pop(key, None)
                continue
            try:
                row = sessions.CODEC.decode(record.value)
            except DecodeError as error:
                await self._sender.dead_letter(record, str(error))
                continue
            if not isinstance(row, UnknownRecord) and (flaw := self._flaw(row, key)) is not None:
                await self._sender.dead_letter(record, flaw)
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
        await self._witness.require_whole(self._position, self._table_end)
        self.table.fill(rows.values())
        self.demand.is_open = True
        self._written_clock = self._now()
        self._written_position = self._position
        log.info(
            "partition owned",
            action="coordinator.owned",
            partition=self._partition,
            position=self._position,
            sessions=len(self.table.sessions()),
        )

    def _flaw(self, row: sessions.Row, key: str) -> str | None:
        """The reason to reject a row of the table that its coordinator didn't write."""
        if key != sessions.key_of(row):
            return f"key: expected {sessions.key_of(row)[:200]!r} (got {key[:200]!r})"
        return None if isinstance(row, Position) else misplaced(row.task_id, self._partition, self._partitions)

    async def _repeat(self) -> None:
        """Repeat commands: the last owner may not have sent them, and a starting proxy reads only a limited part of the log."""
        if time.monotonic() - self._repeated_at > REPEAT_S:
            self._repeated_at = time.monotonic()
            self._to_repeat = [session.session_id for session in self.table.sessions()]
        names, self._to_repeat = self._to_repeat[-REPEATED:], self._to_repeat[:-REPEATED]
        found = [session for name in names if (session := self.table.session(name)) is not None]
        await self._sender.send([command for each in found for command in repeated_commands(each)], self._position)
        if self._to_repeat:
            self._woken.set()

    def _now(self) -> int:
        return self._clock_base + self._leases.now(time.monotonic())

    async def _step(self, records: Sequence[kafka.Record]) -> None:
        if self._fleet.paused != (self.table.pauses.began is not None):
            await self._decide(commands.FleetPaused() if self._fleet.paused else commands.FleetResumed())
        for record in records:
            self.facts += 1
            fact = await self._decoded(record)
            if fact is not None:
                await self._decide(fact)
            self._position = record.offset + 1
        for event in self._due_inputs():
            await self._decide(event)
        if not self._batch.is_empty:
            # The slots that these facts free serve the sessions that they make wait in this same transaction.
            self._assign_slots()
        while (slot := self.demand.next_slot) is not None:
            await self._decide(slot)
            self.demand.slot_decided()
        await self._flush()
        await self._repeat()

    async def _decide(self, event: Input) -> None:
        decision = decide(self.table, event, self._now())
        added = Batch.of(decision)
        if not self._batch.is_empty and not self._batch.fits(added):
            await self._flush()
            # Again: the commit has added log offsets to rows.
            decision = decide(self.table, event, self._now())
            added = Batch.of(decision)
        self.table.apply(decision)
        self._batch.add(added)
        if decision.skipped is not None:
            self.skipped[decision.skipped] += 1
            log.debug("skipped", action="coordinator.skipped", reason=decision.skipped, partition=self._partition)
        if isinstance(event, Claimed):
            self._free_slots.on_claimed(
                event.session_id, event.stage, event.worker_id, event.claim_id, self._leases.clock
            )
        elif isinstance(event, CLAIM_ENDS):
            self._free_slots.on_claim_ended(event.session_id, event.claim_id, self._leases.clock)
        for command in decision.commands:
            if isinstance(command, commands.ReleaseTicket):
                self._free_slots.on_ticket(command, self._leases.clock)

    def _due_inputs(self) -> list[Input]:
        """Inputs that time alone brings. Leases are checked only when the log is read to its end: the missing fact may be on it."""
        now = self._now()
        due: list[Input] = [commands.DeadlinePassed(session_id) for session_id in self.table.pop_due(now)]
        due += [commands.TaskExpired(task_id) for task_id in self.table.pop_expired(now)]
        if not self._caught_up or self._leases.clock == self._leases_checked_at:
            return due
        self._leases_checked_at = self._leases.clock
        for worker_id, claims in self.table.granted_claims.items():
            lost = self._leases.lost_claims(worker_id, claims.keys())
            due += [commands.ClaimLost(claims[claim_id], claim_id) for claim_id in lost]
        for pool in self.table.queue.staged_pools():
            if self._leases.is_offline(pool):
                due += [commands.PoolOffline(session.session_id) for session in self.table.ready(pool)]
        return due

    async def _decoded(self, record: kafka.Record) -> events.Fact | None:
        try:
            fact = events.CODEC.decode(record.value or b"")
        except DecodeError as error:
            await self._sender.dead_letter(record, str(error))
            return None
        if isinstance(fact, UnknownRecord):
            self.skipped[f"unknown_{fact.type}"] += 1
            return None
        flaw = events.flaw(fact) or misplaced(events.task_of(fact), self._partition, self._partitions)
        if flaw is not None:
            await self._sender.dead_letter(record, flaw)
            return None
        if isinstance(fact, ClaimFact) and not self._is_proven(fact, record):
            await self._refuse(fact)
            return None
        return fact

    def _is_proven(self, fact: ClaimFact, record: kafka.Record) -> bool:
        """Whether the fact comes from the worker with the claim; counted and logged if it doesn't."""
        if is_proven(fact, record, self.table.session(fact.session_id), self._claim_keys):
            return True
        self.skipped["unproven"] += 1
        log.warning(
            "fact without a valid MAC of its claim",
            action="coordinator.unproven",
            type=type(fact).__name__,
            session=fact.session_id,
            claim=fact.claim_id,
            partition=self._partition,
            offset=record.offset,
        )
        return False

    async def _refuse(self, fact: ClaimFact) -> None:
        """Revoke a claim that is no claim, or its worker would keep a slot for it; never the one that the row holds, which is another's."""
        session = self.table.session(fact.session_id)
        if isinstance(fact, Claimed) and (session is None or session.claim_id != fact.claim_id):
            await self._sender.send([Revoke(fact.session_id, fact.claim_id, "unproven")], self._position)

    def _position_due(self) -> bool:
        moved = self._position - self._written_position
        if self.table.pending_instants and self._now() - self._written_clock >= CLOCK_MS:
            return True
        return moved >= FACTS or (moved > 0 and time.monotonic() - self._written_at > POSITION_S)

    async def _flush(self) -> None:
        """Commit the batch, then send its commands."""
        batch, self._batch = self._batch, Batch()
        if not batch.is_empty or self._position_due():
            for part in batch.transactions():
                await self._commit(part)
        await self._sender.send(batch.commands, self._position)

    async def _commit(self, part: Transaction) -> None:
        """1. Write records of `polar.completions`; rows and grants need their offsets. 2. Rows. 3. Position. 4. Commit, or all is void."""
        await self._fenced.begin()
        completed = completions.TOPIC.full_name(self._settings.namespace)
        offsets = await self._fenced.write(
            [Write(completed, self._partition, record.key.encode(), record.value) for record in part.records]
        )
        for record, offset in zip(part.records, offsets, strict=True):
            if isinstance(record.record, Open):
                self._locate_log(record.record, offset, part)
        table = sessions.TOPIC.full_name(self._settings.namespace)
        writes = [Write(table, self._partition, key.encode(), value) for key, value in part.rows.items()]
        clock_ms = self._now()
        if part.is_last:
            position = Position(self._position, clock_ms, self.table.pauses.total_ms(clock_ms))
            writes.append(Write(table, self._partition, sessions.key_of(position).encode(), encode(position)))
        self._require_same_table(await self._fenced.write(writes))
        if part.is_last:
            await self._witness.commit(self._fenced, self._position)
        await self._fenced.commit()
        if part.is_last:
            self._written_position = self._position
            self._written_clock = clock_ms
            self._written_at = time.monotonic()

    def _require_same_table(self, offsets: Sequence[int]) -> None:
        """Raises TableLostError, before the commit, if the rows went to a topic that was made again since: offsets only grow."""
        if offsets and offsets[0] < self._table_end:
            raise TableLostError(
                f"{sessions.TOPIC.full_name(self._settings.namespace)} was deleted and made again, or cut, under this coordinator"
            )
        self._table_end = max(self._table_end, *(offset + 1 for offset in offsets)) if offsets else self._table_end

    def _locate_log(self, opened: Open, offset: int, part: Transaction) -> None:
        """Add the offset at which the run's log begins to its row, unless the same batch has moved the row on."""
        session = self.table.session(opened.session_id)
        if session is not None and session.run_claim_id == opened.claim_id:
            located = replace(session, log_offset=offset)
            self.table.load(located)
            part.rows[sessions.key_of(located)] = encode(located)


async def _fetch(consumer: kafka.Consumer, source: kafka.TopicPartition) -> list[kafka.Record]:
    """Available records, at most as many as one transaction takes; none after half a second."""
    records = (await consumer.getmany(timeout_ms=FETCH_MS, max_records=FACTS)).get(source, [])
    if 0 < len(records) < FACTS:
        # The client fetches more only when all its records are taken; what has gathered since lies at the broker.
        more = await consumer.getmany(timeout_ms=GATHER_MS, max_records=FACTS - len(records))
        records += more.get(source, [])
    return records
