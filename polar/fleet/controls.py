"""A hand on the fleet: what it says on `polar.fleet`, and how it knows that all have heard.

Invariant: a pause that doesn't come about, or whose block ends, however it ends, leaves the fleet running; one that someone else has ended
or taken over is never taken for one's own. Each change raises the generation by one, and the first record of a generation counts: a hand
whose record comes second writes again, so that the last record on the log, which is all that compaction leaves, is always what counts.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, Self

import msgspec

from polar.fleet.errors import Busy, Lost, NotStill
from polar.fleet.watching import Watching
from topics import fleet
from topics.environment.settings import ENGINE_NAME, Settings
from topics.fleet import FleetRecord, FleetState, FleetView, PolicyVersion
from topics.log import admin, kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import new_worker_id
from topics.log.producer import LogProducer, Unacknowledged
from topics.types.errors import InputError, NotReady
from topics.workers import Heartbeat

SEND_S = 30.0
STILL_S = 60.0
"""For the fleet to be still: most calls finish in that time."""
TRIES = 5
"""At a change, while others change the state at the same moments."""
ENGINE = re.compile(ENGINE_NAME)
InFlight = Literal["finish", "abort"]


@dataclass(frozen=True)
class Standing:
    """What `polar.fleet` says."""

    state: FleetState
    since_ms: int | None
    """Unix ms: when the state was written; None where none ever was."""
    versions: dict[str | None, int | None]
    """Policy version by engine; that of None is all others'."""

    def __str__(self) -> str:
        """Who has paused the fleet, since when."""
        at = datetime.fromtimestamp((self.since_ms or 0) / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        return f"paused by {self.state.by or 'an unnamed hand'} since {at} (generation {self.state.generation})"


@dataclass(frozen=True)
class Still:
    """A fleet that is paused, with no model call at any engine."""

    generation: int
    took_s: float
    """From asking for it on."""
    proxies: tuple[str, ...]
    """Those that have said so, by worker id."""


class Controls:
    """Inside `async with`: one hand, for as many pauses as one likes, one at a time."""

    def __init__(self, settings: Settings) -> None:
        self.by = new_worker_id("fleet")
        self.settings = settings
        self.producer = LogProducer(settings)
        self._view = FleetView()
        self._late: set[int] = set()
        """Offsets of states that came second."""
        self._follower = Follower(settings, fleet.TOPIC, self._on_record, since=Since.BEGINNING)

    async def __aenter__(self) -> Self:
        """Raises NotReady."""
        await admin.partition_count(self.settings, fleet.TOPIC.full_name(self.settings.namespace), reach_s=0)
        try:
            await self.producer.start(SEND_S)
            await self._follower.start(SEND_S)
        except BaseException:
            await self.producer.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(self._follower.stop(), self.producer.stop())

    @property
    def _standing(self) -> Standing:
        versions = {engine: policy.version for engine, policy in self._view.policies.items()}
        return Standing(self._view.state, self._view.since_ms, versions)

    async def standing(self) -> Standing:
        """What lies on `polar.fleet` now. Raises NotReady."""
        try:
            await self._follower.caught_up(SEND_S)
        except TimeoutError:
            raise NotReady(f"Kafka at {self.settings.bootstrap} doesn't answer within {SEND_S:g} s") from None
        return self._standing

    @asynccontextmanager
    async def paused(
        self, *, in_flight: InFlight = "finish", deadline_s: float = STILL_S, force: bool = False
    ) -> AsyncIterator[Pause]:
        """A still fleet for as long as the block; it runs again after it, however it ends. Raises as `pause` does; at the end Lost.

        Where the block raises and has published no version, nobody knows which weights are served: calls say none until one is published.
        """
        pause = Pause(self, await self.pause(in_flight=in_flight, deadline_s=deadline_s, force=force))
        try:
            yield pause
        except BaseException:
            with suppress(Lost):
                await asyncio.shield(self._give_up(pause))
            raise
        await asyncio.shield(self.end())

    async def pause(self, *, in_flight: InFlight = "finish", deadline_s: float = STILL_S, force: bool = False) -> Still:
        """Pauses the fleet and returns when it is still; it stays so until someone resumes it.

        `in_flight`: whether calls at engines finish, or are ended there and asked anew afterwards. Raises Busy where another hand has
        paused it (`force` takes that over); NotStill, NotReady: the fleet runs again then.
        """
        began = time.monotonic()
        async with Watching(self.settings, self.producer, self.by) as watching:
            before = await self.standing()
            if before.state.paused and before.state.by != self.by and not force:
                raise Busy(f"the fleet is {before}: `polar fleet resume` ends that, force takes it over")
            try:
                state = await self._become(before.state, paused=True, in_flight=in_flight)
                await self._still(watching, state.generation, deadline_s)
            except Busy:
                raise
            except BaseException:
                await asyncio.shield(self._undo(before.state))
                raise
            proxies = sorted(beat.worker_id for beat in watching.echoes.of("proxy"))
        return Still(state.generation, time.monotonic() - began, tuple(proxies))

    async def end(self) -> None:
        """Ends this hand's pause. Raises Lost, NotReady."""
        state = (await self.standing()).state
        self.require_own()
        await self._become(state, paused=False)

    async def resume(self) -> Standing:
        """Ends any pause and any draining, whoever began them; what stood before. Raises NotReady."""
        before = await self.standing()
        if before.state.paused or before.state.draining:
            await self._become(before.state, paused=False, draining=False)
        return before

    async def drain(self) -> FleetState:
        """From now on no session gets a slot, until `resume`. Raises NotReady."""
        before = (await self.standing()).state
        return before if before.draining else await self._become(before, draining=True)

    async def publish(self, version: int, engine: str | None = None, *, force: bool = False) -> None:
        """Says which weights are served from now on, by one engine or by all.

        Raises InputError for a version below 0, and without `force` for one that goes back; NotReady.
        """
        if version < 0:
            raise InputError("version", version, "must be an integer from 0 on")
        if engine is not None and ENGINE.fullmatch(engine) is None:
            raise InputError(
                "engine", engine, "no engine's name: lower-case letters, digits, dashes and underscores, at most 63"
            )
        known = (await self.standing()).versions
        affected = known if engine is None else {engine: known.get(engine, known.get(None))}
        for name, told in affected.items():
            if told is not None and told > version and not force:
                whose = "the fleet" if name is None else f"engine {name}"
                raise InputError(
                    "version", version, f"{whose} is at {told} already; --force (force=True) lets it go back"
                )
        await self._tell(PolicyVersion(version, engine))

    async def heartbeats(self) -> list[Heartbeat]:
        """The newest of each process that lives. Raises NotReady."""
        async with Watching(self.settings, self.producer, self.by) as watching:
            return list(watching.echoes.live.values())

    def require_own(self) -> None:
        """Raises Lost where the fleet isn't paused by this hand, as far as is known here."""
        state = self._standing.state
        if state.paused and state.by == self.by:
            return
        how = f"taken over by {state.by}" if state.paused else f"ended by {state.by or 'someone else'}"
        raise Lost(f"this pause was {how} (generation {state.generation}): calls may have been sampled meanwhile")

    async def _still(self, watching: Watching, generation: int, deadline_s: float) -> None:
        """Returns when every live proxy echoes the generation and has no call at an engine. Raises NotStill, Lost."""
        waiting: list[Heartbeat] = []

        def is_still() -> bool:
            nonlocal waiting
            self.require_own()
            proxies = watching.echoes.of("proxy")
            waiting = [beat for beat in proxies if beat.fleet_generation < generation or beat.calls]
            return not waiting

        try:
            async with asyncio.timeout(deadline_s):
                # Our own record is on the log: a proxy that isn't on this one by now reads that before it serves (protocol 18).
                await watching.caught_up(deadline_s)
                await watching.until(is_still)
        except TimeoutError:
            raise NotStill(deadline_s, waiting, generation) from None

    async def _undo(self, before: FleetState) -> None:
        """Ends a pause that didn't come about, whether its record was acknowledged or may yet arrive; another's it leaves."""
        state = (await self.standing()).state
        if state.generation <= before.generation:
            await self._become(msgspec.structs.replace(before, generation=before.generation + 1), paused=False)
        elif state.paused and state.by == self.by:
            await self._become(state, paused=False)

    async def _give_up(self, pause: Pause) -> None:
        await self.standing()
        self.require_own()
        if not pause.has_published and any(version is not None for version in self._standing.versions.values()):
            await self._tell(PolicyVersion(None))
        await self.end()

    async def _become(
        self,
        before: FleetState,
        *,
        paused: bool | None = None,
        draining: bool | None = None,
        in_flight: InFlight = "finish",
    ) -> FleetState:
        """Writes what follows `before`, until it counts. Raises Busy where another hand has paused the fleet in between, NotReady."""
        mine = FleetState(
            before.generation + 1,
            paused=before.paused if paused is None else paused,
            in_flight=before.in_flight if paused is None else in_flight,
            draining=before.draining if draining is None else draining,
            by=self.by,
        )
        state, is_theirs = mine, False
        for _ in range(TRIES):
            offset = await self._tell(state)
            first = (await self.standing()).state
            if offset not in self._late:
                if is_theirs:
                    raise Busy(f"the fleet is {self._standing}, at the same moment")
                return state
            is_theirs = first.paused and first.by != self.by
            state = msgspec.structs.replace(first if is_theirs else mine, generation=first.generation + 1)
        raise Busy("others change the fleet's state all the time; `polar fleet status` tells who")

    async def _tell(self, record: FleetRecord) -> int:
        """Where the record lies, once acknowledged. Raises NotReady."""
        try:
            ack = await self.producer.send(fleet.TOPIC, record, key=fleet.key_of(record), deadline_s=SEND_S)
        except Unacknowledged as error:
            raise NotReady(
                f"Kafka didn't take it: {error}; it may still arrive: `polar fleet status` tells, `polar fleet resume` ends a pause"
            ) from None
        return ack.offset

    def _on_record(self, record: FleetRecord, envelope: kafka.Record) -> None:
        if not self._view.take(record, offset=envelope.offset, written_ms=envelope.timestamp):
            self._late.add(envelope.offset)


class Pause:
    """A pause that its block holds."""

    def __init__(self, controls: Controls, still: Still) -> None:
        self._controls = controls
        self.still = still
        self.has_published = False

    async def publish(self, version: int, engine: str | None = None, *, force: bool = False) -> None:
        """As `Controls.publish` does. Raises Lost, too, where this is no pause any more."""
        await self._controls.standing()
        self._controls.require_own()
        await self._controls.publish(version, engine, force=force)
        self.has_published = True
