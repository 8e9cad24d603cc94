"""Follows the topics of `analytics/live/fold.py`: the session table from its beginning, heartbeats of the last 10 s, calls and facts of the
last minute; for `analytics/live/recent.py` calls of the last ten minutes, and facts and trajectories of the last three hours.

Invariant: a snapshot is available at any time. While Kafka is unreachable, it shows the time of the last answer and says so. Time is the
broker's: this host's clock, corrected by the newest heartbeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Set
from typing import Any, ClassVar, Self

import msgspec
import structlog

from analytics.live.fold import Fold, Snapshot
from analytics.live.recent import Recent
from analytics.live.series import MINUTE_MS, WINDOW
from topics import completions, events, fleet, sessions, trajectories, workers
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import KafkaError, Record
from topics.types.errors import NotReadyError

READ_S = 300.0
"""For the existing records: a million sessions take about a minute."""
WORKERS_S = 10.0
"""Longer than a lease: every live process has sent a heartbeat since."""
CALLS_S = 60.0
"""The minute of which rates are shown."""
RECENT_CALLS_S = 600.0
"""Sessions that began earlier have no figures until they end: calls are most of the log."""
RECENT_S = WINDOW * MINUTE_MS / 1000
SILENT_S = 2.0
"""A coordinator sends a heartbeat each second; after this silence Kafka is probed."""
AWAY_S = 4.0
"""After this long without an answer or a heartbeat, Kafka counts as unreachable."""

log = structlog.get_logger()


class Live:
    """Follows one namespace inside `async with`, which raises NotReadyError without Kafka or its topics."""

    PROCESSES: ClassVar[Collection[Topic]] = (workers.TOPIC, fleet.TOPIC)
    """The topics needed for live processes and the fleet's state."""
    ALL: ClassVar[Collection[Topic]] = (*PROCESSES, sessions.TOPIC, events.TOPIC, completions.TOPIC)

    def __init__(self, settings: Settings, topics: Collection[Topic] = ALL, *, recent: Recent | None = None) -> None:
        """`recent` gets the records too, and those of the trajectories topics."""
        self._settings = settings
        self._recent = recent
        self._topics = topics if recent is None else (*topics, trajectories.TOPIC, trajectories.EVAL)
        self._fold = Fold()
        self._followers = [self._follower(topic) for topic in self._topics]
        self._named_outputs: dict[str, asyncio.Task[None]] = {}
        """Readers of output topics that tasks named."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Those that end, since others are newer."""
        self._starting: list[asyncio.Task[None]] = []
        self._probing: asyncio.Task[None] | None = None
        self._skew_ms = 0
        """This host's clock minus the broker's."""
        self._answered_at = time.monotonic()

    async def __aenter__(self) -> Self:
        names = [topic.full_name(self._settings.namespace) for topic in self._topics]
        counting = (admin.partition_count(self._settings, name, reach_s=0) for name in names)
        for found in await asyncio.gather(*counting, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
        self._answered_at = time.monotonic()
        self._starting = [asyncio.create_task(one.start(READ_S), name="live-start") for one in self._followers]
        self._probing = asyncio.create_task(self._probe(), name="live-probe")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._probing is not None, "`async with` was entered"
        tasks = [*self._starting, *self._named_outputs.values(), *self._leaving, self._probing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(follower.stop() for follower in self._followers))

    async def caught_up(self) -> None:
        """Return when all records present at the start were read. Raises NotReadyError after 5 minutes."""
        await asyncio.wait(self._starting, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_what_failed()

    def snapshot(self) -> Snapshot:
        """The current snapshot. Raises the error that ended the reading."""
        self._raise_what_failed()
        silent_s = time.monotonic() - self._answered_at
        is_away = silent_s > AWAY_S
        found = self._fold.snapshot(self._now_ms() - (round(silent_s * 1000) if is_away else 0))
        return msgspec.structs.replace(
            found, away_s=silent_s if is_away else None, reading=None if self._is_read else self._share()
        )

    @property
    def _is_read(self) -> bool:
        return all(task.done() for task in self._starting)

    def _raise_what_failed(self) -> None:
        for starting, follower in zip(self._starting, self._followers, strict=True):
            if starting.done():
                starting.result()
                if follower.failed.done():
                    follower.failed.result()

    def _share(self) -> float:
        passed, total = (sum(each) for each in zip(*(one.progress for one in self._followers), strict=True))
        return passed / total if total else 0.0

    def _follower(self, topic: Topic) -> Follower:
        fold, recent = self._fold, self._recent
        minute = Since.ago(CALLS_S)
        takes: dict[str, tuple[Callable[[Any, Record], None], Since]] = {
            workers.TOPIC.name: (self._on_sign, Since.ago(WORKERS_S)),
            fleet.TOPIC.name: (lambda record, envelope: fold.fleet(record, envelope.timestamp), Since.BEGINNING),
            sessions.TOPIC.name: (self._on_row, Since.BEGINNING),
            events.TOPIC.name: (self._on_fact, Since.ago(RECENT_S) if recent else minute),
            completions.TOPIC.name: (self._on_call, Since.ago(RECENT_CALLS_S) if recent else minute),
        }
        on_record, since = takes.get(topic.name, (self._on_output, Since.ago(RECENT_S)))
        return Follower(self._settings, topic, on_record, since=since, on_tombstone=self._on_tombstone, committed=True)

    def _on_row(self, row: sessions.Row, envelope: Record) -> None:
        self._fold.row(row, envelope.timestamp)
        if self._recent is not None:
            self._recent.row(row, envelope.timestamp)
            self._follow_outputs(self._recent.outputs.keys())

    def _follow_outputs(self, outputs: Set[str]) -> None:
        for output in self._named_outputs.keys() - outputs:
            leaving = self._named_outputs.pop(output)
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            leaving.cancel()
        for output in outputs - self._named_outputs.keys():
            self._named_outputs[output] = asyncio.create_task(self._follow(output), name=f"live-{output}")

    def _on_fact(self, fact: events.Fact, envelope: Record) -> None:
        self._fold.fact(fact, envelope.timestamp)
        if self._recent is not None:
            self._recent.fact(fact, envelope.timestamp)

    def _on_call(self, call: completions.CallRecord, envelope: Record) -> None:
        self._fold.call(call, envelope.timestamp)
        if self._recent is not None:
            self._recent.call(call, envelope.timestamp)

    def _on_output(self, output: trajectories.Output, envelope: Record) -> None:
        assert self._recent is not None, "only it follows trajectories"
        self._recent.output(output, envelope.timestamp, self._now_ms())

    async def _follow(self, output: str) -> None:
        """Read an output topic until cancelled; it may have been deleted, which concerns its own sessions alone."""
        follower = self._follower(trajectories.topic(output))
        try:
            await follower.start(READ_S)
            await follower.failed
        except (NotReadyError, KafkaError) as error:
            log.warning("an output isn't shown", action="live.output", output=output, reason=str(error))
        finally:
            await follower.stop()

    def _on_sign(self, sign: workers.Sign, envelope: Record) -> None:
        self._answered()
        self._fold.sign(sign, envelope.timestamp)
        skew_ms = round(time.time() * 1000) - envelope.timestamp
        # An old record's age only shows whether the broker's clock is ahead.
        if not self._is_read:
            skew_ms = min(skew_ms, self._skew_ms)
        self._skew_ms = skew_ms

    def _on_tombstone(self, record: Record) -> None:
        key = (record.key or b"").decode(errors="replace")
        self._fold.tombstone(key)
        if self._recent is not None:
            self._recent.tombstone(key)

    def _now_ms(self) -> int:
        return round(time.time() * 1000) - self._skew_ms

    async def _probe(self) -> None:
        """Check that Kafka answers when no heartbeat comes: perhaps no process is alive."""
        name = workers.TOPIC.full_name(self._settings.namespace)
        while True:
            await asyncio.sleep(SILENT_S / 2)
            if time.monotonic() - self._answered_at < SILENT_S:
                continue
            try:
                await admin.partition_count(self._settings, name, reach_s=0)
                self._answered()
            except NotReadyError:
                continue

    def _answered(self) -> None:
        before, self._answered_at = self._answered_at, time.monotonic()
        gap_ms = round((self._answered_at - before) * 1000)
        if gap_ms > AWAY_S * 1000:
            self._fold.back(self._now_ms() - gap_ms, self._now_ms())
