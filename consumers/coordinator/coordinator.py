"""The coordinator's process: leases, free slots, and a `PartitionCoordinator` for each partition that the group assigns to it.

Group `<namespace>.coordinator` on `polar.events`. `partition` says what a transaction holds and what a crash costs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

import structlog

from consumers.coordinator.leases import Leases
from consumers.coordinator.partition import PartitionCoordinator
from consumers.coordinator.scheduling.assignment import StagePool
from consumers.coordinator.scheduling.free_slots import FreeSlots
from consumers.coordinator.scheduling.scheduler import Scheduler
from consumers.coordinator.scheduling.shares import ROLE
from consumers.metrics import Metrics
from topics import completions, events, fleet, sessions, workers
from topics.environment.claim_keys import ClaimKeys
from topics.environment.settings import Settings
from topics.fleet import FleetRecord, FleetView
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import GATHER_S, HeartbeatSender, new_worker_id
from topics.log.lag import Lag
from topics.log.owner import FencedProducer, PartitionOwner
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.errors import NotReadyError
from topics.types.session import Phase, Stage
from topics.waiting.first_done import first_done
from topics.workers import Backlog, Heartbeat, Probe

PROBE_S = 1.0
"""Protocol 12."""
ROUND_S = 0.25
"""A scheduling round runs at least this often: tickets and claims expire without a record."""
HEARTBEATS_FROM_S = 10.0
"""How far back `polar.workers` is read at the start (protocol 30)."""

log = structlog.get_logger()


async def run_coordinator(settings: Settings, stop: asyncio.Event, metrics: Metrics | None = None) -> None:
    """Coordinate until `stop`. Any number of processes share the partitions.

    Raises NotReadyError without a keys file, and what ended one of its tasks.
    """
    coordinator = Coordinator(settings)
    coordinator.register(metrics or Metrics())
    await coordinator.run(stop)


class Coordinator:
    """The state that the partitions of one process share: leases, slots, and the producer of commands."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._claim_keys = _claim_keys(settings)
        self._worker_id = new_worker_id(ROLE)
        self._leases = Leases()
        self._free_slots = FreeSlots()
        self._fleet = FleetView()
        self._producer = LogProducer(settings)
        self._partitions: dict[int, PartitionCoordinator] = {}
        self._scheduler = Scheduler(self._worker_id, self._free_slots, self._fleet)
        self._slots_changed = asyncio.Event()
        self._reported: tuple[list[Backlog], dict[str, int]] = [], {}
        """Backlogs and staged sessions in the newest heartbeat."""
        self._is_leaving = False
        self._past_facts = 0
        self._past_skipped: Counter[str] = Counter()
        """Totals from partitions that this process no longer owns, as `_past_facts`."""
        self._workers_lost = 0
        self._left: set[str] = set()
        """Processes that announced their end and have no claims: their silence is no loss."""
        self._owner = PartitionOwner(
            settings, "coordinator", events.TOPIC, self._run_partition, writes=(sessions.TOPIC, completions.TOPIC)
        )
        self._heart = HeartbeatSender(settings, self._heartbeat)
        self._signs = Follower(
            settings,
            workers.TOPIC,
            self._on_sign,
            since=Since.ago(HEARTBEATS_FROM_S),
            letters=self._producer,
            gather_s=GATHER_S,
        )
        self._states = Follower(settings, fleet.TOPIC, self._on_fleet, since=Since.BEGINNING, letters=self._producer)

    async def run(self, stop: asyncio.Event) -> None:
        await self._producer.start()
        self._heart.start()
        await self._signs.start()
        await self._states.start()
        try:
            await first_done(
                self._owner.run(stop), self._probe(), self._schedule(), self._signs.failed, self._states.failed
            )
        finally:
            self._is_leaving = True
            await self._states.stop()
            await self._signs.stop()
            self._heart.stop()
            await self._producer.stop()

    def register(self, metrics: Metrics) -> None:
        """Register this process's metrics.

        Sum per-partition values across coordinators. Slots are those of the whole fleet, and every coordinator reports all: take the
        maximum.
        """
        by_priority, by_stage = ("pool", "stage", "priority"), ("pool", "stage")
        partitions = self._partitions
        metrics.heart(ROLE, self._heart)
        metrics.lag(ROLE, Lag(self._settings, self._read_to))
        metrics.gauge(
            "polar_backlog", "Sessions that wait for a slot", by_priority, lambda: self._demand(lambda b: b.sessions)
        )
        metrics.gauge(
            "polar_held", "Sessions with a ticket or a claim", by_priority, lambda: self._demand(lambda b: b.held)
        )
        metrics.gauge(
            "polar_staged", "Sessions between INIT ticket and run claim", ("pool",), lambda: self._scheduler.staged()
        )
        metrics.gauge("polar_slots", "Slots of all live workers", by_stage, lambda: _by_pool(self._free_slots.slots()))
        metrics.gauge("polar_slots_free", "Free slots of all live workers", by_stage, self._free)
        metrics.gauge("polar_sessions", "Sessions in the table", ("phase",), self._phases)
        metrics.gauge("polar_partitions_owned", "Partitions owned", ("role",), lambda: {ROLE: len(self._recovered())})
        metrics.counter(
            "polar_facts", "Facts read", (), lambda: self._past_facts + sum(each.facts for each in partitions.values())
        )
        metrics.counter("polar_workers_lost", "Workers whose lease ended", (), lambda: self._workers_lost)
        metrics.skipped(ROLE, lambda: sum((each.skipped for each in partitions.values()), self._past_skipped))

    def _demand(self, count_of: Callable[[Backlog], int]) -> dict[tuple[str, str, str], float]:
        """With a zero for each stage of an idle pool: an autoscaler's sum of two metrics has no value if one of them is missing."""
        backlogs = self._scheduler.backlogs()
        pools = {pool for _, pool in self._free_slots.slots()} | {each.pool for each in backlogs}
        idle = {(pool, stage.value, "0"): 0.0 for pool in pools for stage in Stage}
        return idle | {(each.pool, each.stage.value, str(each.priority)): count_of(each) for each in backlogs}

    def _free(self) -> dict[tuple[str, str], float]:
        """Free slots that have no ticket of this process on its way."""
        free = Counter(dict.fromkeys(self._free_slots.slots(), 0))
        for worker in self._free_slots.free(self._leases.clock):
            free[worker.stage, worker.pool] += worker.slots
        return _by_pool(free)

    def _phases(self) -> dict[str, float]:
        phases: Counter[Phase] = sum((partition.table.phases for partition in self._recovered()), Counter())
        return {phase.value: phases[phase] for phase in Phase}

    def _read_to(self) -> dict[kafka.TopicPartition, int]:
        partitions = self._partitions.values()
        return {each.source: each.read_to for each in partitions if each.read_to is not None}

    def _recovered(self) -> list[PartitionCoordinator]:
        return [partition for partition in self._partitions.values() if partition.demand.is_open]

    async def _run_partition(self, number: int, fenced: FencedProducer) -> None:
        partition = PartitionCoordinator(
            self._settings,
            number,
            fenced,
            self._producer,
            self._leases,
            self._free_slots,
            self._assign_slots,
            self._fleet,
            self._claim_keys,
        )
        self._partitions[number] = partition
        self._scheduler.demands[number] = partition.demand
        try:
            await partition.run()
        finally:
            del self._partitions[number], self._scheduler.demands[number]
            partition.demand.return_slots()
            self._past_facts += partition.facts
            self._past_skipped += partition.skipped

    def _heartbeat(self) -> Heartbeat:
        backlogs, staged = self._reported = self._scheduler.backlogs(), self._scheduler.staged()
        return self._heart.heartbeat(
            self._worker_id,
            ROLE,
            fleet_generation=self._fleet.generation,
            leaving=self._is_leaving,
            backlogs=backlogs,
            staged=staged,
        )

    def _on_fleet(self, record: FleetRecord, _: kafka.Record) -> None:
        self._fleet.take(record)
        self._heart.changed()
        self._slots_changed.set()

    def _on_sign(self, sign: workers.Sign, record: kafka.Record) -> None:
        match sign:
            case Probe(worker_id=worker_id) if worker_id == self._worker_id:
                self._leases.on_probe(record.timestamp, time.monotonic())
            case Heartbeat():
                self._leases.on_heartbeat(sign)
                self._scheduler.on_heartbeat(sign)
                has_left = sign.leaving and not any(slots.claims for slots in sign.stages)
                (self._left.add if has_left else self._left.discard)(sign.worker_id)
                self._slots_changed.set()

    async def _probe(self) -> None:
        while True:
            try:
                await self._producer.send(
                    workers.TOPIC, Probe(self._worker_id), key=self._worker_id, deadline_s=PROBE_S
                )
            except UnacknowledgedError:
                # In log time an outage is a missing probe.
                log.info("no probe", action="coordinator.no_probe")
            await asyncio.sleep(PROBE_S)

    async def _schedule(self) -> None:
        """Remove lost workers and run a scheduling round, after each change and every `ROUND_S`."""
        while True:
            await first_done(self._slots_changed, timeout_s=ROUND_S)
            self._slots_changed.clear()
            for worker in self._leases.pop_lost_workers():
                self._scheduler.on_worker_lost(worker)
                if worker in self._left:
                    self._left.discard(worker)
                else:
                    log.info("worker lost", action="coordinator.worker_lost", worker=worker)
                    self._workers_lost += 1
            self._assign_slots()
            if not self._scheduler.is_alone and self._reported != (
                self._scheduler.backlogs(),
                self._scheduler.staged(),
            ):
                self._heart.changed()

    def _assign_slots(self) -> None:
        self._scheduler.assign(self._leases.clock)


def _claim_keys(settings: Settings) -> ClaimKeys:
    """Raises NotReadyError."""
    try:
        return ClaimKeys(settings.keys_path)
    except (FileNotFoundError, ValueError) as error:
        raise NotReadyError(
            f"no keys to verify workers with: {error}; copy the fleet's keys file, or set POLAR_KEYS_FILE"
        ) from None


def _by_pool(counts: Mapping[StagePool, int]) -> dict[tuple[str, str], float]:
    return {(pool, stage.value): count for (stage, pool), count in counts.items()}
