"""Retries of an operation on the lake: its failure is logged once, its recovery once, and pauses between tries grow."""

from __future__ import annotations

import structlog

from topics.waiting.backoff import Backoff

PAUSES = Backoff(first_s=1.0, longest_s=15.0)
"""A full disk is repaired by people; the writer then continues within 15 s."""

log = structlog.get_logger()


class Retries:
    """An operation that may fail repeatedly."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._failures = 0

    def failed(self, error: Exception) -> float:
        """Record a failure; returns the seconds to wait before the next try."""
        if not self._failures:
            log.error(
                f"{self._operation} fails and is tried again: free disk space, grant write access, or start the bucket's server; nothing "
                "is lost while Kafka keeps it",
                action="analytics.failing",
                why=f"{type(error).__name__}: {error}",
            )
        self._failures += 1
        return PAUSES.pause_s(self._failures)

    def succeeded(self) -> None:
        if self._failures:
            log.info(f"{self._operation} works again", action="analytics.recovered")
        self._failures = 0
