"""Counts and logs answers whose engine read another prompt than is recorded. Their tokens are on the log and are never trained."""

from __future__ import annotations

import structlog

from proxy.chat import Answer
from proxy.metrics import ProxyMetrics

log = structlog.get_logger(__name__)


class PromptDoubts:
    """The doubts about all engines of a proxy."""

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics
        self._logged: set[str] = set()
        """Engines: each is logged once, and counted always."""

    def take(self, engine: str, answer: Answer) -> None:
        """Count and log the doubt of an answer, if it has one."""
        if answer.prompt_doubt is None:
            return
        self._metrics.misread.labels(engine, answer.prompt_doubt).inc()
        if engine not in self._logged:
            self._logged.add(engine)
            log.warning(
                "an engine reads other prompts than are recorded; these calls are never trained: check what changes requests on the way "
                "to its servers, and their versions",
                action="prompt_doubted",
                engine=engine,
                reason=answer.prompt_doubt,
            )
