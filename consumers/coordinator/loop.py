"""The coordinator's process: who lives, which slots are free, and a keeper for each partition that the group assigns to it.

Group `<namespace>.coordinator` on `polar.events`. What is decided, and what a crash costs, is in `keeper`.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from consumers.coordinator.fleet import FleetView
from consumers.coordinator.keeper import Keeper
from consumers.coordinator.leases import Leases
from consumers.coordinator.lend import Ledger, Want, lend
from polar.settings import Settings
from topics import events, fleet, kafka, workers
from topics.fleet import FleetRecord
from topics.follow import Follower, Since
from topics.heartbeat import Heart, new_worker_id
from topics.owner import FencedProducer, Owner
from topics.producer import LogProducer, Unacknowledged
from topics.workers import Heartbeat, Probe

PROBE_S = 1.0
"""Protocol 12."""
LEND_S = 0.25
"""How often slots are lent when nothing else asks for it."""
HEARTBEATS_FROM_S = 10.0
"""`polar.workers` is read from so long ago (protocol 30)."""

log = structlog.get_logger()


async def run_coordinator(settings: Settings, stop: asyncio.Event) -> None:
    """Coordinate until `stop`. Any number of these share the partitions. Raises what ended one of its parts."""
    await Coordinator(settings).run(stop)


class Coordinator:
    """What the partitions of one process share: leases, slots, and the producer of commands."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker_id = new_worker_id("coordinator")
        self._leases = Leases()
        self._ledger = Ledger()
        self._fleet = FleetView()
        self._producer = LogProducer(settings)
        self._keepers: dict[int, Keeper] = {}
        self._lend_soon = asyncio.Event()
        self._owner = Owner(settings, "coordinator", events.TOPIC, self._keep)
        self._heart = Heart(settings, self._beat)
        self._signs = Follower(
            settings, workers.TOPIC, self._on_sign, since=Since.ago(HEARTBEATS_FROM_S), letters=self._producer
        )
        self._states = Follower(settings, fleet.TOPIC, self._on_fleet, since=Since.BEGINNING, letters=self._producer)

    async def run(self, stop: asyncio.Event) -> None:
        await self._producer.start()
        self._heart.start()
        await self._signs.start()
        await self._states.start()
        parts = {
            asyncio.create_task(self._owner.run(stop), name="coordinator.owner"),
            asyncio.create_task(self._probe(), name="coordinator.probe"),
            asyncio.create_task(self._lend(), name="coordinator.lend"),
        }
        try:
            ends = {*parts, self._signs.failed, self._states.failed}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self._states.stop()
            await self._signs.stop()
            self._heart.stop()
            await self._producer.stop()

    async def _keep(self, partition: int, fenced: FencedProducer) -> None:
        keeper = Keeper(
            self._settings,
            partition,
            fenced,
            self._producer,
            self._leases,
            self._ledger,
            self._lend_soon,
            self._fleet,
        )
        self._keepers[partition] = keeper
        try:
            await keeper.run()
        finally:
            del self._keepers[partition]
            keeper.give_slots_back()

    def _beat(self) -> Heartbeat:
        return self._heart.describe(self._worker_id, "coordinator", fleet_generation=self._fleet.generation)

    def _on_fleet(self, state: FleetRecord, _: kafka.Record) -> None:
        self._fleet.apply(state)
        self._heart.changed()
        self._lend_soon.set()

    def _on_sign(self, sign: workers.Sign, record: kafka.Record) -> None:
        match sign:
            case Probe(worker_id=worker_id) if worker_id == self._worker_id:
                self._leases.probe(record.timestamp, time.monotonic())
            case Heartbeat():
                self._leases.beat(sign)
                self._ledger.beat(sign)
                self._lend_soon.set()

    async def _probe(self) -> None:
        while True:
            try:
                await self._producer.send(
                    workers.TOPIC, Probe(self._worker_id), key=self._worker_id, deadline_s=PROBE_S
                )
            except Unacknowledged:
                # A missing probe is what an outage looks like in log time.
                log.info("no probe", action="coordinator.no_probe")
            await asyncio.sleep(PROBE_S)

    async def _lend(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LEND_S):
                    await self._lend_soon.wait()
            except TimeoutError:
                pass
            self._lend_soon.clear()
            for worker in self._leases.gone():
                log.info("worker lost", action="coordinator.worker_lost", worker=worker)
                self._ledger.lost(worker)
            if not self._fleet.draining:
                self._lend_once()

    def _lend_once(self) -> None:
        wants = [
            Want(partition, stage, pool, count)
            for partition, keeper in self._keepers.items()
            for (stage, pool), count in keeper.wants().items()
        ]
        staged = {
            pool: sum(keeper.table.waiting.staged(pool).total() for keeper in self._keepers.values())
            for pool in {w.pool for w in wants}
        }
        room = {pool: self._ledger.run_slots(pool) - count for pool, count in staged.items()}
        for lent in lend(self._ledger.free(self._leases.clock), self._ledger.in_turn(wants), room):
            self._ledger.promise(lent)
            self._keepers[lent.partition].give(lent.slot)
