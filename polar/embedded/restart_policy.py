"""When a process that died is started again: after pauses that double, and not after too many deaths in a row."""

from __future__ import annotations

import time

from topics.waiting.backoff import Backoff

PAUSES = Backoff(first_s=0.2, longest_s=5.0)
STEADY_S = 10.0
"""A process that lived this long started well; its next death counts as the first."""
FAST_DEATHS = 20
"""Give up after this many deaths in a row. They take some 90 s: no process can start while Kafka is away."""


class RestartPolicy:
    """Counts one process's deaths: call `started` at each start and `next_pause_s` at each death."""

    def __init__(self) -> None:
        self._deaths = 0
        self._started_at = 0.0

    def started(self) -> None:
        self._started_at = time.monotonic()

    def next_pause_s(self) -> float | None:
        """Seconds to wait before the next start; None after too many deaths."""
        if time.monotonic() - self._started_at > STEADY_S:
            self._deaths = 0
        self._deaths += 1
        if self._deaths > FAST_DEATHS:
            return None
        return PAUSES.pause_s(self._deaths)
