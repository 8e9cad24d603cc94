"""The coordinator's process: who lives, which slots are free, and a keeper for each partition that the group assigns to it.

Group `<namespace>.coordinator` on `polar.events`. What is decided, and what a crash costs, is in `keeper`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import structlog

from consumers.coordinator.fleet import FleetView
from consumers.coordinator.keeper import Keeper
from consumers.coordinator.leases import Leases
from consumers.coordinator.metrics import tell
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.scheduler import Scheduler
from consumers.coordinator.scheduling.shares import ROLE
from consumers.coordinator.statistics import Figures
from consumers.metrics import Metrics
from topics import events, fleet, workers
from topics.environment.settings import Settings
from topics.fleet import FleetRecord
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import Heart, new_worker_id
from topics.log.owner import FencedProducer, Owner
from topics.log.producer import LogProducer, Unacknowledged
from topics.types.session import Stage
from topics.waiting.first_done import first_done
from topics.workers import Backlog, Heartbeat, Probe

PROBE_S = 1.0
"""Protocol 12."""
ASSIGN_S = 0.25
"""How often slots are lent when nothing else asks for it."""
HEARTBEATS_FROM_S = 10.0
"""`polar.workers` is read from so long ago (protocol 30)."""

log = structlog.get_logger()


async def run_coordinator(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Coordinate until `stop`. Any number of these share the partitions. Raises what ended one of its parts."""
    coordinator = Coordinator(settings)
    coordinator.tell(metrics or Metrics())
    await coordinator.run(stop)


class Coordinator:
    """What the partitions of one process share: leases, slots, and the producer of commands."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker_id = new_worker_id(ROLE)
        self._leases = Leases()
        self._free_slots = FreeSlots()
        self._fleet = FleetView()
        self._producer = LogProducer(settings)
        self._keepers: dict[int, Keeper] = {}
        self._scheduler = Scheduler(self._worker_id, self._free_slots, self._fleet)
        self._assign_soon = asyncio.Event()
        self._told: tuple[list[Backlog], dict[str, int]] = [], {}
        self._is_leaving = False
        self._facts = 0
        self._skipped: Counter[str] = Counter()
        """These two of partitions that are owned no longer."""
        self._workers_lost = 0
        self._left: set[str] = set()
        """Processes whose newest heartbeat says that they go, with nothing in hand: their silence is no loss."""
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
        try:
            await first_done(
                self._owner.run(stop), self._probe(), self._assign_regularly(), self._signs.failed, self._states.failed
            )
        finally:
            self._is_leaving = True
            await self._states.stop()
            await self._signs.stop()
            self._heart.stop()
            await self._producer.stop()

    def tell(self, metrics: Metrics) -> None:
        """Say where this process's figures are."""
        metrics.heart(ROLE, self._heart)
        tell(metrics, self.figures)

    def figures(self) -> Figures:
        """Of this process, now."""
        keepers = [keeper for keeper in self._keepers.values() if keeper.demand.is_open]
        backlogs = self._scheduler.backlogs()
        free: Counter[tuple[str, Stage]] = Counter()
        for worker in self._free_slots.free(self._leases.clock):
            free[worker.pool, worker.stage] += worker.slots
        return Figures(
            partitions=len(keepers),
            backlog={(told.pool, told.stage, told.priority): told.sessions for told in backlogs},
            held={(told.pool, told.stage, told.priority): told.held for told in backlogs},
            staged=self._scheduler.staged(),
            slots={(pool, stage): slots for (stage, pool), slots in self._free_slots.slots().items()},
            free=free,
            sessions=sum((keeper.table.phases for keeper in keepers), Counter()),
            facts=self._facts + sum(keeper.facts for keeper in self._keepers.values()),
            skipped=sum((keeper.skipped for keeper in self._keepers.values()), self._skipped),
            workers_lost=self._workers_lost,
        )

    async def _keep(self, partition: int, fenced: FencedProducer) -> None:
        keeper = Keeper(
            self._settings,
            partition,
            fenced,
            self._producer,
            self._leases,
            self._free_slots,
            self._assign_slots,
            self._fleet,
        )
        self._keepers[partition] = keeper
        self._scheduler.demands[partition] = keeper.demand
        try:
            await keeper.run()
        finally:
            del self._keepers[partition], self._scheduler.demands[partition]
            keeper.demand.return_slots()
            self._facts += keeper.facts
            self._skipped += keeper.skipped

    def _beat(self) -> Heartbeat:
        backlogs, staged = self._told = self._scheduler.backlogs(), self._scheduler.staged()
        return self._heart.describe(
            self._worker_id,
            ROLE,
            fleet_generation=self._fleet.generation,
            leaving=self._is_leaving,
            backlogs=backlogs,
            staged=staged,
        )

    def _on_fleet(self, state: FleetRecord, _: kafka.Record) -> None:
        self._fleet.apply(state)
        self._heart.changed()
        self._assign_soon.set()

    def _on_sign(self, sign: workers.Sign, record: kafka.Record) -> None:
        match sign:
            case Probe(worker_id=worker_id) if worker_id == self._worker_id:
                self._leases.probe(record.timestamp, time.monotonic())
            case Heartbeat():
                self._leases.on_heartbeat(sign)
                self._scheduler.on_heartbeat(sign)
                has_left = sign.leaving and not any(slots.claims for slots in sign.stages)
                (self._left.add if has_left else self._left.discard)(sign.worker_id)
                self._assign_soon.set()

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

    async def _assign_regularly(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ASSIGN_S):
                    await self._assign_soon.wait()
            except TimeoutError:
                pass
            self._assign_soon.clear()
            for worker in self._leases.gone():
                self._gone(worker)
            self._assign_slots()
            if not self._scheduler.is_alone and self._told != (self._scheduler.backlogs(), self._scheduler.staged()):
                self._heart.changed()

    def _gone(self, worker: str) -> None:
        self._scheduler.on_worker_lost(worker)
        if worker in self._left:
            self._left.discard(worker)
        else:
            log.info("worker lost", action="coordinator.worker_lost", worker=worker)
            self._workers_lost += 1

    def _assign_slots(self) -> None:
        self._scheduler.assign(self._leases.clock)
