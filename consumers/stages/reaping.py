"""Removes the runtimes that nobody needs any more, and kills what dead claims left running (protocol 16). Every worker does it.

A runtime carries the id of the claim that made it. It is removed if no heartbeat has shown that claim for 60 s (5 s after a Revoke),
and if the coordinator's table, read at that moment, has no session that needs it. Both conditions are necessary: heartbeats don't
show sessions that wait, and the table doesn't show a claim that was only requested. Time without Kafka doesn't count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import structlog

from consumers.runtimes.base import Labelled, SandboxError
from consumers.stages.claim_runner import ClaimRunner
from consumers.stages.worker_context import WorkerContext, remove_runtime
from topics import sessions, workers
from topics.log import kafka
from topics.log.follow import Follower, Since
from topics.log.heartbeat import GATHER_S
from topics.types.errors import InputError, NotReadyError
from topics.types.session import Phase, SessionState
from topics.workers import Heartbeat

PERIOD_S = 5.0
"""Between two rounds: short beside UNSEEN_S, and listing the host's runtimes is cheap."""
UNSEEN_S = 60.0
"""Ten leases: no worker is silent for longer and still alive."""
REVOKED_S = 5.0
"""A live worker keeps a revoked claim in its heartbeats, every 2 s, until it has ended the claim."""
HEARTBEATS_S = 10.0
"""How far back heartbeats are read at the start: five of each worker."""
TABLE_S = 60.0
"""Limit for reading the table. Without the table nothing is removed."""
NEEDED = (Phase.READY, Phase.RUNNING, Phase.RAN, Phase.EVALUATING)
"""Phases in which a session works, or will work, in the runtime of its row."""

log = structlog.get_logger()


class Reaper:
    """One worker's share of the reaping: all runtimes on its host."""

    def __init__(self, context: WorkerContext, claims: ClaimRunner) -> None:
        self._context = context
        self._claims = claims
        self._workers = Follower(
            context.settings, workers.TOPIC, self._beat, since=Since.ago(HEARTBEATS_S), gather_s=GATHER_S
        )
        self._clock = 0.0
        """Seconds in which Kafka was there."""
        self._seen_at: dict[str, float] = {}
        """When each claim was last in a heartbeat, by that clock."""
        self._revoked: set[str] = set()
        self.removed = 0
        """Runtimes since the start."""

    def revoked(self, claim_id: str) -> None:
        """Another worker's claim is over. That worker ends the claim itself unless it is dead or paused."""
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
                if self._context.is_connected():
                    self._clock += min(now - last, 2 * PERIOD_S)
                    await self._round()
                last = now
        finally:
            await self._workers.stop()

    def _beat(self, record: workers.Sign, _: kafka.Record) -> None:
        if isinstance(record, Heartbeat):
            self._seen_at.update(dict.fromkeys((c for stage in record.stages for c in stage.claims), self._clock))

    def _unseen_s(self, claim_id: str) -> float:
        return 0.0 if claim_id in self._claims else self._clock - self._seen_at.setdefault(claim_id, self._clock)

    async def _round(self) -> None:
        found = await self._context.labelled()
        makers = {runtime.labels.claim_id for _, runtime in found}
        over = {claim for claim in self._revoked if self._unseen_s(claim) >= REVOKED_S}
        self._revoked -= over
        if found:
            for claim_id in over:
                await self._kill(claim_id)
        doomed = over | {claim for claim in makers if self._unseen_s(claim) >= UNSEEN_S}
        suspects = [(backend, runtime) for backend, runtime in found if runtime.labels.claim_id in doomed]
        rows = await self._rows({runtime.labels.session_id for _, runtime in suspects}) if suspects else {}
        for backend, runtime in suspects:
            if rows is None or is_needed(runtime, rows.get(runtime.labels.session_id)):
                # Looked at again in 60 s, not in the next round: a session may wait for long, and the whole table is read.
                self._seen_at[runtime.labels.claim_id] = self._clock
            elif await remove_runtime(backend, runtime, "reaper"):
                self.removed += 1
        known = makers | self._revoked
        self._seen_at = {c: at for c, at in self._seen_at.items() if c in known or self._clock - at < UNSEEN_S}

    async def _rows(self, session_ids: Iterable[str]) -> dict[str, SessionState] | None:
        """The current rows of these sessions, by session id; None if the table can't be read."""
        wanted = frozenset(session_ids)
        rows: dict[str, SessionState] = {}

        def row(record: sessions.Row, _: kafka.Record) -> None:
            if isinstance(record, SessionState) and record.session_id in wanted:
                rows[record.session_id] = record

        table = Follower(self._context.settings, sessions.TOPIC, row, since=Since.BEGINNING)
        try:
            await table.start(TABLE_S)
        except NotReadyError as error:
            log.warning("table not read", action="reaper.no_table", why=str(error))
            return None
        finally:
            await table.stop()
        return rows

    async def _kill(self, claim_id: str) -> None:
        for backend in self._context.backends():
            try:
                await backend.kill_claim(claim_id)
            except (SandboxError, InputError) as error:
                log.warning("claim not killed", action="reaper.unkillable", claim=claim_id, why=str(error))


def is_needed(runtime: Labelled, row: SessionState | None) -> bool:
    """Whether the session's row needs this runtime: the row's claim is making it, or it is the row's own runtime."""
    if row is None:
        return False
    if row.phase is Phase.INIT:
        return row.claim_id == runtime.labels.claim_id
    return row.phase in NEEDED and row.runtime == dict(runtime.handle)
