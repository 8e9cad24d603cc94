"""Draining: the whole fleet, or some of its processes, finishes its active sessions and accepts no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from polar.fleet.errors import DrainTimeoutError
from polar.fleet.heartbeat_watch import HeartbeatWatch
from polar.table import SessionTable
from topics import control
from topics.control import Drain
from topics.log.producer import LogProducer, UnacknowledgedError
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Phase

SEND_S = 30.0
"""Deadline of one acknowledgement, and of reading the heartbeats there are."""
ACTIVE = frozenset({Phase.INIT, Phase.RUNNING, Phase.EVALUATING, Phase.CLOSING, Phase.BUILDING})
DRAINABLE = frozenset({"worker", "proxy"})
"""Roles that obey a `Drain`: the other roles have no session's work."""
QUIET_S = 2.0
"""Draining ends when no session was active for this time: decisions that coordinators made before are in the table sooner."""
LOOK_S = 0.25
"""Time between two counts over the whole table."""
Progress = Callable[[int], None]


class _Report:
    """Passes a count on to `progress` when it changes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.last: int | None = None

    def __call__(self, count: int) -> None:
        if count != self.last:
            self.last = count
            self._progress(count)


async def until_drained(
    watch: HeartbeatWatch, table: SessionTable, generation: int, deadline_s: float | None, progress: Progress
) -> None:
    """Wait until all coordinators drain since `generation` and no session is active. Raises DrainTimeoutError."""
    quiet_since: float | None = None
    counted_at = 0.0
    report = _Report(progress)

    def active() -> int:
        sessions = [row for rows in table.sessions.values() for row in rows.values()]
        # A ticket that is out will be claimed, or no longer counts after 10 s.
        rows = sum(row.phase in ACTIVE or row.ticket_released_at is not None for row in sessions)
        claims = sum(len(slots.claims) for beat in watch.processes.live.values() for slots in beat.stages)
        return max(rows, claims)

    def is_drained() -> bool:
        nonlocal quiet_since, counted_at
        if time.monotonic() - counted_at < LOOK_S:
            return False
        counted_at = time.monotonic()
        count = active()
        report(count)
        if count or watch.processes.behind("coordinator", generation):
            quiet_since = None
            return False
        quiet_since = quiet_since or time.monotonic()
        return time.monotonic() - quiet_since >= QUIET_S

    try:
        async with asyncio.timeout(deadline_s):
            await watch.caught_up(SEND_S)
            await watch.until(is_drained)
    except TimeoutError:
        raise DrainTimeoutError(
            f"{report.last} sessions are still active after {deadline_s:g} s; no new one begins; `polar fleet resume` ends the draining"
        ) from None


async def drain_processes(
    watch: HeartbeatWatch, producer: LogProducer, names: Collection[str], deadline_s: float | None, progress: Progress
) -> None:
    """Make these workers and proxies drain, and wait until their heartbeats have ended. Raises as `Fleet.drain`."""
    live = watch.processes.live
    if unknown := [name for name in names if name not in live]:
        raise InputError("WORKER", unknown[0], f"no such process lives; there are: {', '.join(sorted(live)) or 'none'}")
    for name in names:
        if (role := live[name].role) not in DRAINABLE:
            reason = (
                f"is a {role}, which has no session to finish: end it with SIGTERM, and another process replaces it"
            )
            raise InputError("WORKER", name, reason)
    for name in names:
        try:
            await producer.send(control.TOPIC, Drain(name), key=name, deadline_s=SEND_S)
        except UnacknowledgedError as error:
            raise NotReadyError(f"Kafka didn't acknowledge the request to {name}: {error}") from None
    report = _Report(progress)

    def remaining() -> list[str]:
        return sorted(watch.processes.live.keys() & set(names))

    def have_ended() -> bool:
        report(len(remaining()))
        return not remaining()

    try:
        async with asyncio.timeout(deadline_s):
            await watch.until(have_ended)
    except TimeoutError:
        raise DrainTimeoutError(
            f"{', '.join(remaining())} still live after {deadline_s:g} s; they continue to drain"
        ) from None
