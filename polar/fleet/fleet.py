"""`Fleet`: pauses, drains and resumes a fleet, and knows when all of its processes have read the change.

Invariants: if a pause doesn't succeed, or its block ends in any way, the fleet runs. A pause that another client has ended or taken over
is never treated as one's own. Each change raises the generation by one, and the first record of a generation counts. A client whose
record comes second writes again, so the last record on the log, which compaction keeps, is always the one that counts.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self

import msgspec

from polar.fleet import draining
from polar.fleet.errors import PausedByOtherError, PauseLostError, PauseTimeoutError
from polar.fleet.heartbeat_watch import HeartbeatWatch
from polar.table import SessionTable
from topics import fleet
from topics.environment.settings import ENGINE_NAME, Settings, load
from topics.fleet import FleetRecord, FleetState, FleetView, Publication
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import new_worker_id
from topics.log.producer import Ack, LogProducer, UnacknowledgedError
from topics.types.errors import InputError, NotReadyError
from topics.workers import Heartbeat

SEND_S = 30.0
"""Deadline of one acknowledgement: longer than an election of a partition's leader."""
PAUSE_S = 60.0
"""Default deadline of a pause: most calls finish in that time."""
TRIES = 5
"""Attempts at a change while other clients change the state at the same time."""
MOST_VERSION = 2**63 - 1
"""The largest integer of the lake."""
ENGINE = re.compile(ENGINE_NAME)
InFlight = Literal["finish", "abort"]


@dataclass(frozen=True)
class FleetStatus:
    """The state on `polar.fleet`."""

    state: FleetState
    since_ms: int | None
    """When the state was written, unix ms. None if none was ever written."""
    versions: dict[str | None, int | None]
    """Policy version by engine. The key None holds the version of all other engines."""

    def __str__(self) -> str:
        """Who has paused the fleet, and since when."""
        at = datetime.fromtimestamp((self.since_ms or 0) / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        return f"paused by {self.state.by or 'an unnamed client'} since {at} (generation {self.state.generation})"


@dataclass(frozen=True)
class PauseReport:
    """The outcome of a pause: the fleet is paused, and no model call is at any engine."""

    generation: int
    took_s: float
    """Seconds since the request."""
    proxies: tuple[str, ...]
    """Worker ids of the proxies that acknowledged the pause."""


class Fleet:
    """One client of the fleet's state, inside `async with`. It may pause any number of times, one pause at a time."""

    def __init__(self, settings: Settings | None = None) -> None:
        """`settings`: those of the system (`polar.load_settings`). None: the system that the `polar` command would find."""
        self.by = new_worker_id("fleet")
        self.settings = settings or load()
        self._producer = LogProducer(self.settings)
        self._view = FleetView()
        self._late: set[int] = set()
        """Offsets of states that came second in their generation."""
        self._follower = Follower(self.settings, fleet.TOPIC, self._on_record, since=Since.BEGINNING)

    async def __aenter__(self) -> Self:
        """Raises NotReadyError."""
        await admin.partition_count(self.settings, fleet.TOPIC.full_name(self.settings.namespace), reach_s=0)
        try:
            await self._producer.start(SEND_S)
            await self._follower.start(SEND_S)
        except BaseException:
            await self._producer.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self._follower.stop(), self._producer.stop())

    @property
    def _status(self) -> FleetStatus:
        versions = {engine: policy.version for engine, policy in self._view.policies.items()}
        return FleetStatus(self._view.state, self._view.since_ms, versions)

    async def status(self) -> FleetStatus:
        """The state now on `polar.fleet`. Raises NotReadyError."""
        try:
            await self._follower.caught_up(SEND_S)
        except TimeoutError:
            raise NotReadyError(f"Kafka at {self.settings.bootstrap} doesn't answer within {SEND_S:g} s") from None
        return self._status

    @asynccontextmanager
    async def paused(
        self, *, in_flight: InFlight = "finish", deadline_s: float = PAUSE_S, force: bool = False
    ) -> AsyncIterator[Pause]:
        """A paused fleet for the block. The fleet runs again when the block ends in any way.

        Raises as `pause` does, and PauseLostError at the end.

        If the block raises before it publishes a version, nobody knows which weights are served: calls record no version until one is
        published.
        """
        pause = Pause(self, await self.pause(in_flight=in_flight, deadline_s=deadline_s, force=force))
        try:
            yield pause
        except BaseException:
            with suppress(PauseLostError):
                await asyncio.shield(self._abandon(pause))
            raise
        await asyncio.shield(self.end())

    async def pause(
        self, *, in_flight: InFlight = "finish", deadline_s: float = PAUSE_S, force: bool = False
    ) -> PauseReport:
        """Pause the fleet and return when no call is at any engine. The fleet stays paused until someone resumes it.

        `in_flight`: whether calls at engines finish, or are aborted there and sent again after the pause. Raises PausedByOtherError if
        another client has paused the fleet; `force` takes that pause over. Raises PauseTimeoutError or NotReadyError; the fleet then
        runs again.
        """
        began = time.monotonic()
        async with HeartbeatWatch(self.settings, self._producer, self.by) as watch:
            before = await self.status()
            if before.state.paused and before.state.by != self.by and not force:
                raise PausedByOtherError(
                    f"the fleet is {before}: `polar fleet resume` ends the pause, force takes it over"
                )
            try:
                state = await self._write_state(before.state, paused=True, in_flight=in_flight)
                await self._until_paused(watch, state.generation, deadline_s)
            except PausedByOtherError:
                raise
            except BaseException:
                await asyncio.shield(self._undo(before.state))
                raise
            proxies = sorted(beat.worker_id for beat in watch.processes.of("proxy"))
        return PauseReport(state.generation, time.monotonic() - began, tuple(proxies))

    async def end(self) -> None:
        """End this client's pause. Raises PauseLostError, NotReadyError."""
        state = (await self.status()).state
        self.require_own()
        await self._write_state(state, paused=False)

    async def resume(self) -> FleetStatus:
        """End any pause and any draining, whoever began them. The status before. Raises NotReadyError."""
        before = await self.status()
        if before.state.paused or before.state.draining:
            await self._write_state(before.state, paused=False, draining=False)
        return before

    async def drain(
        self,
        workers: Collection[str] = (),
        *,
        deadline_s: float | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Drain the fleet: no session gets a slot until `resume`; return when no session is active, opened ones included.

        With `workers`, drain these workers and proxies instead: they accept nothing more, finish their work and end. `progress` gets the
        number of active sessions, or of live processes, at each change. Raises InputError for a worker that doesn't live or has another
        role. Raises DrainTimeoutError at the deadline, and draining continues. Raises NotReadyError.
        """
        async with HeartbeatWatch(self.settings, self._producer, self.by) as watch:
            if workers:
                await draining.drain_processes(watch, self._producer, workers, deadline_s, progress)
                return
            async with SessionTable(self.settings) as table:
                before = (await self.status()).state
                state = before if before.draining else await self._write_state(before, draining=True)
                await draining.until_drained(watch, table, state.generation, deadline_s, progress)

    async def publish(self, version: int, engine: str | None = None, *, force: bool = False) -> Publication:
        """Publish the version of the weights that one engine, or all, serve from now on. The publication, for `Staleness`.

        A lower version than the current one, with `force`, is a rollback: weights of higher versions that were published before it belong
        to an abandoned line, even if their numbers are used again. Raises InputError for a version below 0 or above 2**63 - 1 and, without
        `force`, for a lower version. Raises NotReadyError.
        """
        if not 0 <= version <= MOST_VERSION:
            raise InputError("version", version, f"must be an integer from 0 to {MOST_VERSION}")
        if engine is not None and ENGINE.fullmatch(engine) is None:
            raise InputError(
                "engine", engine, "no engine's name: lower-case letters, digits, dashes and underscores, at most 63"
            )
        await self.status()
        for name, current in self._view.replaced(engine).items():
            if current.version is not None and current.version > version and not force:
                where = "the fleet" if name is None else f"engine {name}"
                reason = f"{where} is at {current.version} already; --force (force=True) allows a lower version"
                raise InputError("version", version, reason)
        return await self._publish(version, engine)

    async def _publish(self, version: int | None, engine: str | None = None) -> Publication:
        record = self._view.publishing(version, engine)
        ack = await self._write(record)
        if ack.offset < 0:
            raise NotReadyError("Kafka has the version and can't say at which offset: publish the version again")
        return Publication.of(record, ack.offset, ack.timestamp)

    async def heartbeats(self) -> list[Heartbeat]:
        """The newest heartbeat of each live process. Raises NotReadyError."""
        async with HeartbeatWatch(self.settings, self._producer, self.by) as watch:
            return list(watch.processes.live.values())

    def require_own(self) -> None:
        """Raise PauseLostError if the records read so far say that the fleet isn't paused by this client."""
        state = self._status.state
        if state.paused and state.by == self.by:
            return
        how = f"taken over by {state.by}" if state.paused else f"ended by {state.by or 'someone else'}"
        raise PauseLostError(
            f"this pause was {how} (generation {state.generation}): calls may have been sampled meanwhile"
        )

    async def _until_paused(self, watch: HeartbeatWatch, generation: int, deadline_s: float) -> None:
        """Wait until every live proxy acknowledges the generation and has no call at an engine.

        Raises PauseTimeoutError, PauseLostError.
        """
        waiting: list[Heartbeat] = []

        def is_paused() -> bool:
            nonlocal waiting
            self.require_own()
            proxies = watch.processes.of("proxy")
            waiting = [beat for beat in proxies if beat.fleet_generation < generation or beat.calls]
            return not waiting

        try:
            async with asyncio.timeout(deadline_s):
                # Our record is on the log: a proxy without a heartbeat by now reads that record before it serves (protocol 18).
                await watch.caught_up(deadline_s)
                await watch.until(is_paused)
        except TimeoutError:
            raise PauseTimeoutError(deadline_s, waiting, generation) from None

    async def _undo(self, before: FleetState) -> None:
        """End a pause that failed, also if its record may still arrive. Another client's pause stays."""
        state = (await self.status()).state
        if state.generation <= before.generation:
            await self._write_state(msgspec.structs.replace(before, generation=before.generation + 1), paused=False)
        elif state.paused and state.by == self.by:
            await self._write_state(state, paused=False)

    async def _abandon(self, pause: Pause) -> None:
        await self.status()
        self.require_own()
        if not pause.has_published and any(version is not None for version in self._status.versions.values()):
            await self._publish(None)
        await self.end()

    async def _write_state(
        self,
        before: FleetState,
        *,
        paused: bool | None = None,
        draining: bool | None = None,
        in_flight: InFlight = "finish",
    ) -> FleetState:
        """Write the state that follows `before`, until it counts.

        Raises PausedByOtherError if another client pauses the fleet meanwhile, NotReadyError.
        """
        mine = FleetState(
            before.generation + 1,
            paused=before.paused if paused is None else paused,
            in_flight=before.in_flight if paused is None else in_flight,
            draining=before.draining if draining is None else draining,
            by=self.by,
        )
        state, is_theirs = mine, False
        for _ in range(TRIES):
            offset = (await self._write(state)).offset
            first = (await self.status()).state
            if offset not in self._late:
                if is_theirs:
                    raise PausedByOtherError(f"the fleet is {self._status}, at the same moment")
                return state
            is_theirs = first.paused and first.by != self.by
            state = msgspec.structs.replace(first if is_theirs else mine, generation=first.generation + 1)
        raise PausedByOtherError("other clients keep changing the fleet's state; `polar fleet status` shows which")

    async def _write(self, record: FleetRecord) -> Ack:
        """Raises NotReadyError."""
        try:
            return await self._producer.send(fleet.TOPIC, record, key=fleet.key_of(record), deadline_s=SEND_S)
        except UnacknowledgedError as error:
            raise NotReadyError(
                f"Kafka didn't acknowledge the change: {error}; it may still arrive (`polar fleet status`); "
                "`polar fleet resume` ends a pause"
            ) from None

    def _on_record(self, record: FleetRecord, envelope: kafka.Record) -> None:
        if not self._view.take(record, offset=envelope.offset, written_ms=envelope.timestamp):
            self._late.add(envelope.offset)


class Pause:
    """The pause of a `Fleet.paused` block."""

    def __init__(self, fleet: Fleet, report: PauseReport) -> None:
        self._fleet = fleet
        self.report = report
        self.has_published = False

    async def publish(self, version: int, engine: str | None = None, *, force: bool = False) -> Publication:
        """Publish as `Fleet.publish` does. Also raises PauseLostError if this pause has ended."""
        await self._fleet.status()
        self._fleet.require_own()
        publication = await self._fleet.publish(version, engine, force=force)
        self.has_published = True
        return publication
