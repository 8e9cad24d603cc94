"""A lake that can't be written: said once when it begins and once when it is over, tried again ever more seldom."""

from __future__ import annotations

import structlog

from topics.waiting.backoff import Backoff

PAUSES = Backoff(first_s=1.0, longest_s=15.0)

log = structlog.get_logger()


class Trouble:
    """One thing that may fail again and again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._failures = 0

    def met(self, error: Exception) -> float:
        """It failed; seconds to wait before the next try."""
        if not self._failures:
            log.error(
                f"{self._what} fails, and is tried again: make room, or give the rights; nothing is lost while Kafka keeps its records",
                action="analytics.failing",
                why=f"{type(error).__name__}: {error}",
            )
        self._failures += 1
        return PAUSES.pause_s(self._failures)

    def over(self) -> None:
        """It went well."""
        if self._failures:
            log.info(f"{self._what} goes well again", action="analytics.recovered")
        self._failures = 0
