"""Which policy versions sampled an answer: its engine's word, else the fleet's, else nobody's.

What is passed on covers each token once, whichever plug-in told it; what isn't believed is counted under its reason.
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
    """Of all engines."""

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics
        self._said: set[tuple[str, Doubt]] = set()
        """Of an engine, by name, each doubt is logged once, and counted always."""
        self._versioned: set[str] = set()
        """Engines that have named a version: one whose weights have another name has started anew, with other weights."""

    def attribute(self, engine: str, answer: Answer, fleet: int | None) -> Answer:
        """The answer with what the log is to say of its versions; `fleet`: the version that the fleet's state proves.

        That stands only where the engine tells of no change within the answer: of such the fleet knows nothing. What an engine says late
        counts only where the fleet proves the same.
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
        if (engine, doubt) not in self._said:
            self._said.add((engine, doubt))
            log.warning("an engine's weights have no versions", action="policy_doubted", engine=engine, reason=doubt)
