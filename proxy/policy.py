"""The weights that sampled an answer, by version and publication: as the engine reports them, otherwise as the fleet's state proves them
for the server that answered, otherwise unknown.

Invariant: the versions passed on cover each token exactly once, whatever a plug-in reports. Rejected reports are counted by reason.
"""

from __future__ import annotations

import msgspec
import structlog

from proxy.chat import Answer, Doubt
from proxy.engine_processes import EngineProcesses
from proxy.engines.process import Process
from proxy.fleet import EngineCall
from proxy.metrics import ProxyMetrics
from topics.fleet import Publication
from topics.types.completion import are_whole
from topics.types.tokens import count

LOGGED = 1_000
"""Number of doubts remembered, and of restarted processes; then each is logged once more."""

log = structlog.get_logger(__name__)


class VersionAttribution:
    """Attributes versions to the answers of all engines."""

    def __init__(self, processes: EngineProcesses, metrics: ProxyMetrics) -> None:
        self._processes = processes
        self._metrics = metrics
        self._logged: set[tuple[str, Doubt | Process | None]] = set()
        """By engine name: each doubt is logged once, a restart once per process; all are counted."""

    def attribute(self, engine: str, answer: Answer, call: EngineCall) -> Answer:
        """The answer with the versions and publications that the log records; `call` has ended.

        What the fleet proves counts only if the engine reports no change within the answer, of which the fleet knows nothing. A version
        that an engine reports late counts only if the fleet proves the same version.
        """
        version, spans, doubt = answer.policy_version, answer.policy_spans, answer.policy_doubt
        publication: int | None = None
        if doubt == "late" and call.proven is not None and version == call.proven.version:
            doubt = None
        if spans and not are_whole(spans, count(answer.sampled_ids)):
            doubt = "gaps"
        if doubt is not None:
            self._doubted(engine, doubt)
            version, spans = None, ()
        if spans:
            version = spans[0].version
            spans = tuple(
                msgspec.structs.replace(span, publication=self._publication(engine, span.version, call))
                for span in spans
            )
        if version is not None:
            publication = self._publication(engine, version, call)
            if call.process is not None:
                self._processes.named(engine, call.process)
        elif doubt is None or (doubt == "not_ours" and not self._processes.names_weights(engine)):
            proven = self._proven(engine, call)
            if proven is not None and proven.version is not None:
                version, publication = proven.version, proven.offset
        return msgspec.structs.replace(answer, policy_version=version, publication=publication, policy_spans=spans)

    def _publication(self, engine: str, version: int, call: EngineCall) -> int | None:
        """Offset of the publication of weights that the engine names by this version; None if it isn't certain.

        If a rollback came between two uses of the number, a server that missed it still serves the older weights. A server that was
        started after the newer publication can't have been given the older weights.
        """
        publication = call.publication_of(version)
        if publication is None:
            return None
        if publication.has_reused(version, engine) and (
            call.process is None or self._processes.serves(engine, call.process, publication)
        ):
            return None
        return publication.offset

    def _proven(self, engine: str, call: EngineCall) -> Publication | None:
        """The publication that the server which answered must serve."""
        if call.proven is None or call.proven.version is None:
            return None
        if call.process is not None and self._processes.serves(engine, call.process, call.proven):
            return call.proven
        self._count("restarted")
        if self._is_news(engine, call.process):
            log.warning(
                "a server was started after its weights were published, or its start can't be read: load them and publish again",
                action="policy_doubted",
                engine=engine,
                reason="restarted",
                url=call.process and call.process.url,
            )
        return None

    def _doubted(self, engine: str, doubt: Doubt) -> None:
        self._count(doubt)
        if self._is_news(engine, doubt):
            log.warning("an engine's weights have no versions", action="policy_doubted", engine=engine, reason=doubt)

    def _is_news(self, engine: str, what: Doubt | Process | None) -> bool:
        if (engine, what) in self._logged:
            return False
        if len(self._logged) >= LOGGED:
            self._logged.clear()
        self._logged.add((engine, what))
        return True

    def _count(self, doubt: Doubt) -> None:
        self._metrics.doubted.labels(doubt).inc()
