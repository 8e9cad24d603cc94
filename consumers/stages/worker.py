"""A stage worker process: heartbeats, readers of `polar.control` and `polar.fleet`, one producer, and the queues of its stages.

Groups `<namespace>.<stage>.<pool>`. In: tickets, Grants and Revokes. Out: facts. The process keeps no state that matters: if it is
killed, its leases run out and its sessions go on elsewhere. A worker that leaves first takes no more tickets. Its claims then have time
to finish: the grace of a stop (0 s by default), or any time after a `Drain`. In the end the worker kills what runs, hands its claims
back, which costs no attempt, and is gone within 10 s. Nothing that it started outlives it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from consumers.metrics import Metrics
from consumers.stages.claim_runner import Claim, ClaimRunner, Work
from consumers.stages.claims import Event
from consumers.stages.discarding import Discards
from consumers.stages.evaluate import Evaluate
from consumers.stages.init import Init
from consumers.stages.reaping import Reaper
from consumers.stages.run import Run, require
from consumers.stages.tickets import TicketQueue
from consumers.stages.worker_context import WorkerContext
from topics import control, fleet
from topics.contract import catalogue
from topics.control import Discard, Drain, Revoke
from topics.environment.settings import Settings
from topics.fleet import FleetRecord
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import HeartbeatSender, new_worker_id
from topics.log.producer import LogProducer
from topics.types.session import Stage
from topics.waiting.first_done import first_done
from topics.workers import Heartbeat

SLOTS = {Stage.INIT: 4, Stage.RUN: 8, Stage.EVALUATE: 4}
"""Sessions at once without `--concurrency`. A run mostly waits for the model; the other stages use this host's CPU."""
WORK: dict[Stage, type[Init | Run | Evaluate]] = {Stage.INIT: Init, Stage.RUN: Run, Stage.EVALUATE: Evaluate}
DRAIN_S = 5.0
"""Limit for killing the work and handing the claims back; without Kafka the clients take 4 s more of the 10."""
CLIENTS_S = 2.0
"""Limit for the producer's last records, within the 10 s."""
KAFKA_S = 60.0
"""Limit for a broker's first answer: the same as for this process's other clients."""
WITHOUT_KAFKA_S = 900.0
"""After this long without Kafka, sessions are stopped (protocol 14)."""
WATCH_S = 1.0
"""Between two checks of the connection: short beside WITHOUT_KAFKA_S."""

log = structlog.get_logger()


async def run_worker(
    settings: Settings,
    stages: Sequence[Stage],
    *,
    pool: str,
    concurrency: int | None,
    stop: asyncio.Event,
    grace_s: float = 0.0,
    hurry: asyncio.Event | None = None,
    metrics: Metrics | None = None,
) -> None:
    """Work on `stages` of `pool` until `stop` or a `Drain`. `concurrency`: sessions of each stage at once.

    `grace_s`: time for claims to finish after `stop`, cut short by `hurry`. Raises NotReadyError without Kafka, and if a setting that runs
    need is missing.
    """
    if Stage.RUN in stages:
        require(settings)
    # Before the first heartbeat: a coordinator that knows the worker may write to its queues at once.
    applying = admin.apply(settings, catalogue.of_pool(pool), embedded=settings.replication == 1, reach_s=KAFKA_S)
    if applying not in await first_done(applying, stop):
        return
    worker = _Worker(settings, stages, pool, concurrency)
    worker.register(metrics or Metrics())
    await worker.run(_StopNotice(stop, grace_s, hurry or asyncio.Event()))


@dataclass(frozen=True)
class _StopNotice:
    """When and how fast this process has to stop."""

    stop: asyncio.Event
    grace_s: float
    hurry: asyncio.Event

    async def out_of_time(self) -> None:
        """Return when the claims have had their time."""
        await self.stop.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.grace_s):
                await self.hurry.wait()


class _Worker:
    def __init__(self, settings: Settings, stages: Sequence[Stage], pool: str, concurrency: int | None) -> None:
        self._id = new_worker_id("worker")
        self._leaving = asyncio.Event()
        self._drained = asyncio.Event()
        """A `Drain` for this worker has come."""
        self._heart = HeartbeatSender(settings, self._beat)
        self._log = LogProducer(settings)
        self._context = WorkerContext(settings, lambda: self._heart.connected, self._changed)
        self._claims = ClaimRunner(self._log, self._id, self._changed)
        self._reaper = Reaper(self._context, self._claims)
        self._discards = Discards(self._context, self._claims)
        self._control = Follower(settings, control.TOPIC, self._on_control, since=Since.END)
        self._fleet = Follower(settings, fleet.TOPIC, self._on_fleet, since=Since.BEGINNING)
        self._queues = [
            TicketQueue(
                settings,
                stage,
                pool,
                concurrency or SLOTS[stage],
                claims=self._claims,
                producer=self._log,
                make_work=partial(self._work, stage),
                on_change=self._changed,
                is_closed=partial(self._is_closed, stage),
            )
            for stage in stages
        ]

    def register(self, metrics: Metrics) -> None:
        """Make this worker's figures part of `metrics`."""
        per_queue, claims = ("pool", "stage"), self._claims
        metrics.heart("stages", self._heart)
        metrics.gauge(
            "polar_worker_slots",
            "Sessions that this worker takes at once",
            per_queue,
            self._by_queue(lambda q: q.slots),
        )
        room = self._context.disk_room
        metrics.gauge(
            "polar_worker_disk_short",
            "1 while the disk of this worker's runtimes has less than its reserve, so no session begins",
            (),
            lambda: float(room.is_short),
        )
        metrics.gauge("polar_worker_slots_free", "Free slots", per_queue, self._by_queue(lambda q: q.free))
        metrics.counter("polar_tickets", "Tickets taken", per_queue, self._by_queue(lambda q: q.taken))
        metrics.counter("polar_claims_granted", "Claims granted", ("stage",), lambda: claims.granted)
        metrics.counter(
            "polar_claims_ended", "Finished claims, by how they ended", ("stage", "how"), lambda: claims.ended
        )
        metrics.counter(
            "polar_runtimes_removed",
            "Runtimes removed that no claim needed",
            ("why",),
            lambda: {"discarded": self._discards.removed, "reaped": self._reaper.removed},
        )
        skipped = [each.skipped for each in (self._control, self._fleet)] + [each.skipped for each in self._queues]
        metrics.skipped("stages", lambda: sum(skipped, Counter()))

    def _by_queue(self, figure: Callable[[TicketQueue], int]) -> Callable[[], dict[tuple[str, str], float]]:
        return lambda: {(queue.pool, queue.stage.value): figure(queue) for queue in self._queues}

    async def run(self, notice: _StopNotice) -> None:
        """Work until a stop or a `Drain`. If a part fails, the whole worker stops and raises that part's error."""
        running: list[asyncio.Task[Any]] = []
        try:
            # A stop cuts the start off: no ticket is taken yet, and Kafka may stay away for long.
            starting = self._start()
            if starting not in await first_done(starting, notice.stop):
                return
            parts = [
                asyncio.create_task(self._reaper.run(), name="reaper"),
                asyncio.create_task(self._discards.run(), name="discards"),
                asyncio.create_task(self._watch_kafka(), name="kafka-watch"),
                asyncio.create_task(self._context.disk_room.watch(), name="disk-watch"),
                self._control.failed,
                self._fleet.failed,
            ]
            running = [*parts, *(queue.start(self._leaving) for queue in self._queues)]
            log.info("worker started", action="worker.started", worker=self._id)
            await first_done(*running, notice.stop, self._drained)
            if notice.stop.is_set() or self._drained.is_set():
                await first_done(*parts, self._finish(), notice.out_of_time())
            for task in running:
                if task.done():
                    task.result()
        finally:
            await self._leave(running)

    async def _start(self) -> None:
        await self._context.check_cells()
        await self._log.start()
        await self._control.start()
        await self._fleet.start()
        self._heart.start()

    async def _finish(self) -> None:
        """Take no more tickets, and return when all claims have ended."""
        log.info("worker leaves", action="worker.leaving", worker=self._id)
        self._leaving.set()
        self._changed()
        await asyncio.gather(*(queue.ended() for queue in self._queues))
        await self._claims.drained()

    async def _leave(self, running: list[asyncio.Task[Any]]) -> None:
        """Leave: 1. take no more tickets; 2. kill the work and hand the claims back; 3. stop the clients."""
        self._leaving.set()
        self._changed()
        self._claims.feed_all(Event.LEAVING)
        deadline = time.monotonic() + DRAIN_S
        await asyncio.gather(*(queue.ended(DRAIN_S) for queue in self._queues))
        self._claims.feed_all(Event.LEAVING)  # a queue may have taken a last ticket meanwhile
        if not await self._claims.drained(max(0.0, deadline - time.monotonic())):
            log.warning("claims not handed back in time", action="worker.cut_off", worker=self._id)
            await self._claims.cut_off()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(
            self._control.stop(),
            self._fleet.stop(),
            self._log.stop(CLIENTS_S),
            asyncio.to_thread(self._heart.stop),
        )
        log.info("worker stopped", action="worker.stopped", worker=self._id)

    def _work(self, stage: Stage, claim: Claim) -> Work:
        return WORK[stage](self._context, claim)

    def _is_closed(self, stage: Stage) -> bool:
        return stage is Stage.INIT and self._context.disk_room.is_short

    def _on_control(self, record: control.Control, envelope: kafka.Record) -> None:
        self._claims.on_answer(record, envelope.timestamp)
        match record:
            case Revoke(claim_id=claim_id) if claim_id not in self._claims:
                self._reaper.revoked(claim_id)
            case Discard():
                self._discards.add(record)
            case Drain(worker_id=worker_id) if worker_id == self._id:
                self._drained.set()

    def _on_fleet(self, record: FleetRecord, _: kafka.Record) -> None:
        self._context.fleet.take(record)

    def _changed(self) -> None:
        self._heart.changed()
        self._discards.wake()
        for queue in self._queues:
            queue.wake()

    def _beat(self) -> Heartbeat:
        return HeartbeatSender.heartbeat(
            self._id,
            "worker",
            stages=[queue.stage_slots() for queue in self._queues],
            leaving=self._leaving.is_set(),
            fleet_generation=self._context.fleet.generation,
            obstacle=self._obstacle(),
        )

    def _obstacle(self) -> str:
        begins_sessions = any(queue.stage is Stage.INIT for queue in self._queues)
        return self._context.disk_room.obstacle if begins_sessions else ""

    async def _watch_kafka(self) -> None:
        """Stop all sessions after 15 min without Kafka: nobody can know their leases any more."""
        connected_at = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_S)
            now = time.monotonic()
            if self._heart.connected:
                connected_at = now
            elif now - connected_at > WITHOUT_KAFKA_S:
                self._claims.feed_all(Event.NO_KAFKA)
                connected_at = now
