"""The coordinator against a real broker: nothing on its logs stops it."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, KeysView
from contextlib import asynccontextmanager
from itertools import groupby

from msgspec.structs import replace

from consumers.coordinator.batch import SESSIONS
from consumers.coordinator.coordinator import run_coordinator
from consumers.coordinator.leases import Leases
from consumers.coordinator.partition import PartitionCoordinator
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.witness import Witness
from polar.table import SessionTable
from tests.waiting import eventually
from topics import completions, dead_letters, events, sessions
from topics.environment.claim_keys import ClaimKeys
from topics.environment.settings import Settings
from topics.events import CancelRequested, InitFinished, TaskSubmitted
from topics.fleet import FleetState, FleetView
from topics.log import kafka as clients
from topics.log.follow import Follower, Since
from topics.log.owner import FencedProducer, read_back
from topics.log.partition import partition_of_task
from topics.log.producer import LogProducer
from topics.sessions import Position
from topics.types.session import Phase, Plan, SessionState, Status, TaskState

DEADLINE_S = 30.0
PARTITION = partition_of_task("t", sessions.TOPIC.embedded_partitions)
PLAN = Plan("default", 0, 3, 600, 3600, 600, "shell", "prefix_merging", b"{}", None, "train", b"{}")


class AllLost(Leases):
    """No claim has a lease, whenever leases are checked."""

    def lost_claims(self, worker_id: str, claims: KeysView[str]) -> list[str]:
        return list(claims)


async def test_no_lease_is_checked_while_a_fact_of_its_claim_may_be_unread(
    settings: Settings, log: LogProducer
) -> None:
    """A log of large facts comes in many fetches of few records."""
    claimed = SessionState("t.0", "t", 0, Phase.INIT, 0, releases=1, claim_id="c", worker_id="w")
    for row in (TaskState("t", 1, "hash", plan=PLAN), claimed):
        await log.send(sessions.TOPIC, row, key=sessions.key_of(row), task_id="t")
    again = TaskSubmitted("f", "t", 1, "hash", PLAN, body=os.urandom(60_000))
    for fact in (*[again] * 60, InitFinished("g", "t.0", 1, "c", runtime={"dir": "x"})):
        await log.send(events.TOPIC, fact, key="t", task_id="t")
    async with coordinating(settings, log, AllLost()) as partition, asyncio.timeout(DEADLINE_S):
        while (session := partition.table.session("t.0")) is None or session.phase is Phase.INIT:
            await asyncio.sleep(0.01)
    assert (session.phase, session.attempt) == (Phase.READY, 1)


class Hourly(Leases):
    """Each look at the clock finds it an hour on."""

    def now(self, monotonic_s: float) -> int:
        self.clock += 3_600_000
        return self.clock


async def test_time_that_passes_without_facts_outlives_a_coordinator(settings: Settings, log: LogProducer) -> None:
    """Else a session that is left alone would begin its TTL anew with each start."""
    opened = SessionState("t.0", "t", 0, Phase.RUNNING, 0, claim_id="c", run_claim_id="c", ttl_ms=2**50)
    for row in (TaskState("t", 1, "", plan=PLAN, opened_at=0), opened):
        await log.send(sessions.TOPIC, row, key=sessions.key_of(row), task_id="t")
    async with coordinating(settings, log, Hourly()), positions(settings) as written, asyncio.timeout(DEADLINE_S):
        while len(written) < 2:
            await asyncio.sleep(0.01)
    clocks = [position.clock_ms for position in written]
    assert clocks == sorted(set(clocks))


async def test_a_pause_outlives_a_coordinator_and_no_run_ends_in_it(settings: Settings, log: LogProducer) -> None:
    ttl_ms = 5 * 3_600_000
    opened = SessionState("t.0", "t", 0, Phase.RUNNING, 0, claim_id="c", run_claim_id="c", ttl_ms=ttl_ms)
    for row in (TaskState("t", 1, "", plan=PLAN, opened_at=0), opened):
        await log.send(sessions.TOPIC, row, key=sessions.key_of(row), task_id="t")
    fleet = FleetView()
    fleet.take(FleetState(1, paused=True))
    async with positions(settings) as written:
        for _ in range(2):
            before = len(written)
            async with coordinating(settings, log, Hourly(), fleet) as partition, asyncio.timeout(DEADLINE_S):
                while len(written) < before + 2 or written[-1].clock_ms < 2 * ttl_ms:
                    await asyncio.sleep(0.01)
                assert partition.table.session("t.0") == opened
        fleet.take(FleetState(2))
        async with coordinating(settings, log, Hourly(), fleet) as partition, asyncio.timeout(DEADLINE_S):
            while (session := partition.table.session("t.0")) is None or session.status is None:
                await asyncio.sleep(0.01)
            assert session.status is Status.TIMED_OUT
    assert all(0 < position.clock_ms - position.paused_ms <= 2 * ttl_ms for position in written)


async def test_a_task_of_many_samples_takes_several_transactions(settings: Settings, log: LogProducer) -> None:
    """Each begins the next only when it is committed; the last holds the task and the position."""
    fact = TaskSubmitted("f", "t", 2 * SESSIONS + 1, "hash", PLAN, body=b"{}")
    cancel = CancelRequested("g", "t")
    async with coordinating(settings, log, Leases()), positions(settings) as written, asyncio.timeout(DEADLINE_S):
        for given in (fact, cancel):
            await log.send(events.TOPIC, given, key="t", task_id="t")
        while not written or written[-1].next_offset < 2:
            await asyncio.sleep(0.01)
    topic = sessions.TOPIC.full_name(settings.namespace)
    records = [record async for record in read_back(settings, topic, PARTITION)]
    rows = [sessions.CODEC.decode(record.value or b"") for record in records]
    ids = [row.session_id for row in rows if isinstance(row, SessionState)]
    assert len(ids) == 2 * fact.num_samples
    kinds = [kind for kind, _ in groupby(type(row) for row in rows)]
    assert kinds == [SessionState, TaskState, Position] * 2
    lying = {type(row): record.offset for row, record in zip(rows, records, strict=True)}
    assert lying[Position] == lying[TaskState] + 1, "one transaction: between two lies the first one's end"
    built = completions.TOPIC.full_name(settings.namespace)
    builds = [record async for record in read_back(settings, built, PARTITION) if b"build" in (record.value or b"")]
    assert len(builds) == fact.num_samples


async def test_a_decision_moves_the_offset_of_a_group_by_which_a_lost_table_is_known(
    settings: Settings, log: LogProducer
) -> None:
    witness = Witness(settings, PARTITION)
    assert await witness.missed(0) is None
    async with coordinating(settings, log, Leases()):
        decided = await log.send(events.TOPIC, CancelRequested("f", "t"), key="t", task_id="t")
        assert await eventually(lambda: witness.missed(0), DEADLINE_S) == decided.offset + 1
    assert await witness.missed(decided.offset + 1) is None


@asynccontextmanager
async def coordinating(
    settings: Settings, log: LogProducer, leases: Leases, fleet: FleetView | None = None
) -> AsyncIterator[PartitionCoordinator]:
    """The coordinator of task `t`'s partition."""
    fenced = FencedProducer(settings, f"coordinator.{PARTITION}")
    await fenced.start()
    partition = PartitionCoordinator(
        settings,
        PARTITION,
        fenced,
        log,
        leases,
        FreeSlots(),
        lambda: None,
        fleet or FleetView(),
        ClaimKeys(settings.keys_path),
    )
    running = asyncio.create_task(partition.run())
    try:
        yield partition
    finally:
        running.cancel()
        await asyncio.wait({running})
        await fenced.stop()


@asynccontextmanager
async def positions(settings: Settings) -> AsyncIterator[list[Position]]:
    """What is committed of the clock and the log's position, as it comes."""
    written: list[Position] = []

    def on_row(record: sessions.Row, _: object) -> None:
        if isinstance(record, Position):
            written.append(record)

    follower = Follower(settings, sessions.TOPIC, on_row, since=Since.BEGINNING, committed=True)
    await follower.start()
    try:
        yield written
    finally:
        await follower.stop()


async def test_rows_that_are_none_are_passed_over_whatever_their_key(settings: Settings, log: LogProducer) -> None:
    await litter(settings)
    stop = asyncio.Event()
    running = asyncio.create_task(run_coordinator(settings, stop))
    async with SessionTable(settings) as table:
        for fact in (TaskSubmitted("f", "t", 1, "hash", PLAN, body=b"{}"), CancelRequested("g", "t")):
            await log.send(events.TOPIC, fact, key="t", task_id="t")
        assert await table.until(lambda: "t" in table.sessions, DEADLINE_S)
    stop.set()
    await asyncio.wait_for(running, DEADLINE_S)
    topic = dead_letters.TOPIC.full_name(settings.namespace)
    letters = [record.value async for record in read_back(settings, topic, 0)]
    assert letters == [b"\xff no row"]


async def test_facts_of_another_partitions_tasks_and_impossible_ones_are_dead_letters(
    settings: Settings, log: LogProducer
) -> None:
    fact = TaskSubmitted("f", "t", 1, "hash", PLAN, body=b"{}")
    elsewhere = next(
        f"t{n}" for n in range(100) if partition_of_task(f"t{n}", events.TOPIC.embedded_partitions) != PARTITION
    )
    endless = replace(fact, plan=replace(PLAN, run_budget_s=math.nan))
    async with coordinating(settings, log, Leases()) as partition, asyncio.timeout(DEADLINE_S):
        for given in (replace(fact, task_id=elsewhere), endless, fact):
            await log.send(events.TOPIC, given, key="t", task_id="t")
        while partition.table.session("t.0") is None:
            await asyncio.sleep(0.01)
        assert partition.table.session(f"{elsewhere}.0") is None
    topic = dead_letters.TOPIC.full_name(settings.namespace)
    reasons = [dict(record.headers)["reason"].decode() async for record in read_back(settings, topic, 0)]
    assert len(reasons) == 2
    assert "its partition is" in reasons[0]
    assert "plan.run_budget_s: must be 0 to" in reasons[1]


async def litter(settings: Settings) -> None:
    """Bytes that are no row, and a tombstone, under a key that is no text, where task `t` lies."""
    foreign = clients.producer(settings)
    await foreign.start()
    for value in (b"\xff no row", None):
        topic = sessions.TOPIC.full_name(settings.namespace)
        await (await foreign.send(topic, value, key=b"\xff", partition=PARTITION))
    await foreign.stop()
