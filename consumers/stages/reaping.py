"""Removes the runtimes that nobody needs any more, and kills what dead claims left running (protocol 16). Every worker does it.

A runtime bears the claim that made it. It goes when no heartbeat has held that claim for 60 s, or for 5 s where the claim is revoked,
and the table, read at that moment, doesn't keep it READY or in hand. Both must hold: heartbeats alone don't know of sessions that wait,
the table alone not of a claim that was only asked for. Time without Kafka doesn't count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog

from consumers.runtimes.base import Labelled, RuntimeBackend, RuntimeFault
from consumers.stages.claims import Claims
from consumers.stages.worker_context import Site
from topics import sessions, workers
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.types.errors import InputError, NotReady
from topics.types.session import Phase, SessionState
from topics.workers import Heartbeat

PERIOD_S = 5.0
UNHELD_S = 60.0
"""Ten leases: longer than a worker is ever silent and lives."""
REVOKED_S = 5.0
"""A live worker has a revoked claim in its heartbeats, every 2 s, until it has ended it."""
HEARTBEATS_S = 10.0
"""How far back heartbeats are read at the start."""
TABLE_S = 60.0
"""For reading the table; without it nothing is removed."""
NEEDED = (Phase.READY, Phase.RUNNING, Phase.RAN, Phase.EVALUATING)
"""Phases in which a session works, or will work, in the runtime of its row."""

log = structlog.get_logger()


class Reaper:
    """One worker's share of the reaping: all runtimes on its host."""

    def __init__(self, site: Site, claims: Claims) -> None:
        self._site = site
        self._claims = claims
        self._workers = Follower(site.settings, workers.TOPIC, self._beat, since=Since.ago(HEARTBEATS_S))
        self._clock = 0.0
        """Seconds in which Kafka was there."""
        self._held_at: dict[str, float] = {}
        """When a claim was last in a heartbeat, by that clock."""
        self._revoked: set[str] = set()
        self.removed = 0
        """Runtimes, since the start."""

    def revoked(self, claim_id: str) -> None:
        """Another worker's claim is over. That worker sees to it itself, unless it is dead or paused."""
        self._revoked.add(claim_id)

    async def run(self) -> None:
        """Reap until cancelled."""
        await self._workers.start()
        last = time.monotonic()
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                if self._workers.failed.done():
                    self._workers.failed.result()
                now = time.monotonic()
                if self._site.is_connected():
                    self._clock += min(now - last, 2 * PERIOD_S)
                    await self._round()
                last = now
        finally:
            await self._workers.stop()

    def _beat(self, record: workers.Sign, _: kafka.Record) -> None:
        if isinstance(record, Heartbeat):
            self._held_at.update(dict.fromkeys((c for stage in record.stages for c in stage.claims), self._clock))

    def _unheld_s(self, claim_id: str) -> float:
        return 0.0 if claim_id in self._claims else self._clock - self._held_at.setdefault(claim_id, self._clock)

    async def _round(self) -> None:
        found = await self._site.labelled()
        makers = {runtime.labels.claim_id for _, runtime in found}
        over = {claim for claim in self._revoked if self._unheld_s(claim) >= REVOKED_S}
        self._revoked -= over
        if found:
            for claim_id in over:
                await self._kill(claim_id)
        doomed = over | {claim for claim in makers if self._unheld_s(claim) >= UNHELD_S}
        suspects = [(backend, runtime) for backend, runtime in found if runtime.labels.claim_id in doomed]
        rows = await self._rows({runtime.labels.session_id for _, runtime in suspects}) if suspects else {}
        for backend, runtime in suspects:
            if rows is None or is_needed(runtime, rows.get(runtime.labels.session_id)):
                # Asked again in 60 s, not in the next round: a session may wait for long, and the table is read whole.
                self._held_at[runtime.labels.claim_id] = self._clock
            else:
                await self._remove(backend, runtime)
        known = makers | self._revoked
        self._held_at = {c: at for c, at in self._held_at.items() if c in known or self._clock - at < UNHELD_S}

    async def _rows(self, session_ids: Iterable[str]) -> dict[str, SessionState] | None:
        """These sessions' rows of the table, as they are now; None where it can't be read."""
        wanted = frozenset(session_ids)
        rows: dict[str, SessionState] = {}

        def row(record: sessions.Row, _: kafka.Record) -> None:
            if isinstance(record, SessionState) and record.session_id in wanted:
                rows[record.session_id] = record

        table = Follower(self._site.settings, sessions.TOPIC, row, since=Since.BEGINNING)
        try:
            await table.start(TABLE_S)
        except NotReady as error:
            log.warning("table not read", action="reaper.no_table", why=str(error))
            return None
        finally:
            await table.stop()
        return rows

    async def _kill(self, claim_id: str) -> None:
        for backend in self._site.backends():
            try:
                await backend.kill_claim(claim_id)
            except (RuntimeFault, InputError) as error:
                log.warning("claim not killed", action="reaper.unkillable", claim=claim_id, why=str(error))

    async def _remove(self, backend: RuntimeBackend, runtime: Labelled) -> None:
        labels = runtime.labels
        try:
            await backend.remove(runtime.handle)
        except (RuntimeFault, OSError) as error:
            log.warning("runtime not removed", action="reaper.failed", claim=labels.claim_id, why=str(error))
        else:
            self.removed += 1
            log.info("runtime removed", action="reaper.removed", claim=labels.claim_id, session=labels.session_id)


def is_needed(runtime: Labelled, row: SessionState | None) -> bool:
    """Whether the session's row keeps this runtime: it is being made under the claim in hand, or is the row's own."""
    if row is None:
        return False
    if row.phase is Phase.INIT:
        return row.claim_id == runtime.labels.claim_id
    return row.phase in NEEDED and row.runtime == dict(runtime.handle)
