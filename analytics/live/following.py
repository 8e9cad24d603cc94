"""Follows what `analytics/live/fold.py` folds: the table from its beginning, heartbeats from 10 s ago, calls and facts from a minute ago.

Invariant: a snapshot can be had at any time. While Kafka is away it stands still, as of the last answer, and says so; when it is back it
goes on. Time is the broker's: this host's clock, less what the newest heartbeats show it to be off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec

from analytics.live.fold import Fold, Snapshot
from topics import completions, events, fleet, sessions, workers
from topics.contract.topic import Topic
from topics.environment.settings import Settings
from topics.log import admin
from topics.log.follow import Follower, Since
from topics.log.kafka import Record
from topics.types.errors import NotReady

READ_S = 300.0
"""To read what lies there: a million sessions take about a minute."""
WORKERS_S = 10.0
CALLS_S = 60.0
SILENT_S = 2.0
"""A coordinator is heard every second; after so long Kafka is asked whether it is there."""
AWAY_S = 4.0
"""What is asked and heard in vain for so long is away."""


class Live:
    """A live picture of one namespace. Inside `async with` it reads on; Kafka and the topics must be there at the start (NotReady)."""

    PROCESSES: ClassVar[Collection[Topic]] = (workers.TOPIC, fleet.TOPIC)
    """Enough for who lives, and whether the fleet is paused."""
    ALL: ClassVar[Collection[Topic]] = (*PROCESSES, sessions.TOPIC, events.TOPIC, completions.TOPIC)

    def __init__(self, settings: Settings, topics: Collection[Topic] = ALL) -> None:
        self._settings = settings
        self._topics = topics
        self._fold = Fold()
        self._followers = [self._follower(topic) for topic in topics]
        self._starting: list[asyncio.Task[None]] = []
        self._asking: asyncio.Task[None] | None = None
        self._skew_ms = 0
        """This host's clock less the broker's."""
        self._answered_at = time.monotonic()

    async def __aenter__(self) -> Self:
        names = [topic.full_name(self._settings.namespace) for topic in self._topics]
        counting = (admin.partition_count(self._settings, name, reach_s=0) for name in names)
        for found in await asyncio.gather(*counting, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
        self._answered_at = time.monotonic()
        self._starting = [asyncio.create_task(one.start(READ_S), name="live-start") for one in self._followers]
        self._asking = asyncio.create_task(self._ask(), name="live-ask")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._asking is not None, "it was entered"
        tasks = [*self._starting, self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(follower.stop() for follower in self._followers))

    async def caught_up(self) -> None:
        """Return when all that lay on the topics at the start was read. Raises NotReady where that takes more than 5 min."""
        await asyncio.wait(self._starting, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_what_failed()

    def snapshot(self) -> Snapshot:
        """What goes on now. Raises what ended the reading for good."""
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
        fold = self._fold
        takes: dict[str, tuple[Callable[[Any, Record], None], Since]] = {
            workers.TOPIC.name: (self._on_sign, Since.ago(WORKERS_S)),
            fleet.TOPIC.name: (lambda record, envelope: fold.fleet(record, envelope.timestamp), Since.BEGINNING),
            sessions.TOPIC.name: (lambda row, envelope: fold.row(row, envelope.timestamp), Since.BEGINNING),
            events.TOPIC.name: (lambda fact, envelope: fold.fact(fact, envelope.timestamp), Since.ago(CALLS_S)),
            completions.TOPIC.name: (lambda call, envelope: fold.call(call, envelope.timestamp), Since.ago(CALLS_S)),
        }
        on_record, since = takes[topic.name]
        return Follower(self._settings, topic, on_record, since=since, on_tombstone=self._on_tombstone, committed=True)

    def _on_sign(self, sign: workers.Sign, envelope: Record) -> None:
        self._answered()
        self._fold.sign(sign, envelope.timestamp)
        skew_ms = round(time.time() * 1000) - envelope.timestamp
        # While the past is read, only that the broker's clock is ahead can be told from a record's age.
        if not self._is_read:
            skew_ms = min(skew_ms, self._skew_ms)
        self._skew_ms = skew_ms

    def _on_tombstone(self, record: Record) -> None:
        self._fold.tombstone((record.key or b"").decode(errors="replace"))

    def _now_ms(self) -> int:
        return round(time.time() * 1000) - self._skew_ms

    async def _ask(self) -> None:
        """Know whether Kafka is there where nothing is heard of it: perhaps no process lives."""
        name = workers.TOPIC.full_name(self._settings.namespace)
        while True:
            await asyncio.sleep(SILENT_S / 2)
            if time.monotonic() - self._answered_at < SILENT_S:
                continue
            try:
                await admin.partition_count(self._settings, name, reach_s=0)
                self._answered()
            except NotReady:
                continue

    def _answered(self) -> None:
        before, self._answered_at = self._answered_at, time.monotonic()
        gap_ms = round((self._answered_at - before) * 1000)
        if gap_ms > AWAY_S * 1000:
            self._fold.back(self._now_ms() - gap_ms, self._now_ms())
