"""The policy versions that sampled an answer: as its engine reports them, otherwise as the fleet's state proves them, otherwise unknown.

Invariant: the versions passed on cover each token exactly once, whatever a plug-in reports. Rejected reports are counted by reason.
"""

from __future__ import annotations

import msgspec
import structlog

from proxy.chat import Answer, Doubt
from proxy.metrics import ProxyMetrics
from topics.types.completion import are_whole
from topics.types.tokens import count

log = structlog.get_logger(__name__)


class VersionAttribution:
    """Attributes versions to the answers of all engines."""

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics
        self._logged: set[tuple[str, Doubt]] = set()
        """By engine name: each doubt is logged once, and counted always."""
        self._versioned: set[str] = set()
        """Engines that have reported a version: one that then reports another name for its weights has restarted."""

    def attribute(self, engine: str, answer: Answer, fleet: int | None) -> Answer:
        """The answer with the versions that the log records; `fleet`: the version that the fleet's state proves.

        The fleet's version counts only if the engine reports no change within the answer, of which the fleet knows nothing. A version that
        an engine reports late counts only if the fleet proves the same version.
        """
        version, spans, doubt = answer.policy_version, answer.policy_spans, answer.policy_doubt
        if doubt == "late":
            version, doubt = (version, None) if version == fleet else (None, doubt)
        if spans and not are_whole(spans, count(answer.sampled_ids)):
            version, spans, doubt = None, (), "gaps"
        if doubt is not None:
            self._doubted(engine, doubt)
        if spans:
            version = spans[0].version
        if version is not None:
            self._versioned.add(engine)
        elif doubt is None or (doubt == "not_ours" and engine not in self._versioned):
            version = fleet
        return msgspec.structs.replace(answer, policy_version=version, policy_spans=spans)

    def _doubted(self, engine: str, doubt: Doubt) -> None:
        self._metrics.doubted.labels(doubt).inc()
        if (engine, doubt) not in self._logged:
            self._logged.add((engine, doubt))
            log.warning("an engine's weights have no versions", action="policy_doubted", engine=engine, reason=doubt)
