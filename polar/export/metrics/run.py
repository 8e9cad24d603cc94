"""Writes the points of a run to a program that shows curves: those that are final now, or also those that come.

Invariant: the program holds the position. Points are written in the order of their times, and a start asks for the newest time of each
curve. So a start after a crash writes what is missing and nothing twice, whatever the crash interrupted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from analytics.queries import query
from polar.export.metrics.completeness import complete_until
from polar.export.metrics.curves import CURVES, Axis, Point, points, tag
from polar.export.metrics.sinks.base import Sink
from topics.environment.settings import Settings
from topics.types.errors import NotReadyError
from topics.waiting.backoff import Backoff

LOOK_S = 30.0
"""Between two looks for new points: a minute is over once a minute."""
PAUSES = Backoff(first_s=2.0, longest_s=60.0, jitter=0.2)
"""After the lake, Kafka or the program didn't answer."""

log = structlog.get_logger()


@dataclass
class Export:
    """The curves of one run on the way to one program."""

    settings: Settings
    run: str
    sink: Sink
    points: int = 0
    """Points written by this process."""
    failures: int = 0
    """Looks in a row that failed, in `follow`."""

    def write_all(self, is_stopped: Callable[[], bool] = lambda: False) -> int:
        """Write the points that are final and that the program lacks, until `is_stopped`; returns `points`.

        Raises SinkError, and NotReadyError without a lake or if Kafka doesn't answer.
        """
        written = self.sink.written()
        with query.connect(self.settings) as reader:
            until_ms = complete_until(self.settings, reader.manifest)
            found = [
                point for axis in Axis for point in points(reader, self.run, axis, newest(written, axis), until_ms)
            ]
        for point in sorted(found, key=lambda one: one.at_ms):
            if is_stopped():
                break
            if missing := lacking(point, written):
                self.sink.write(missing)
                self.points += 1
        return self.points

    async def follow(self, stop: asyncio.Event) -> None:
        """Write what is there and what comes, until `stop`. What doesn't answer is asked again, after a pause that grows up to a minute."""
        while not stop.is_set():
            before, pause_s = self.points, LOOK_S
            try:
                await asyncio.to_thread(self.write_all, stop.is_set)
                self.failures = 0
            except NotReadyError as error:
                self.failures += 1
                pause_s = PAUSES.pause_s(self.failures, random.random())
                log.warning("will write again", action="metrics.failed", why=str(error), pause_s=round(pause_s, 1))
            if self.points > before:
                log.info("points written", action="metrics.written", points=self.points)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()


def newest(written: Mapping[str, int], axis: Axis) -> int:
    """The time (Unix ms) of the newest point of an axis that was written, perhaps in part; 0: none was."""
    return max((written.get(tag(axis, curve), 0) for curve in CURVES), default=0)


def lacking(point: Point, written: Mapping[str, int]) -> Point | None:
    """The values of a point that weren't written; None: all were."""
    values = {name: value for name, value in point.values.items() if written.get(name, -1) < point.at_ms}
    return replace(point, values=values) if values else None
