"""The metrics of a process, and whether it is ready. `metrics_http` serves them.

Values are read from their owners when Prometheus asks, on the event loop that changes them. A role counts in plain numbers and registers
once where they are. Several roles of a process may register a metric of one name; their values are added up. Labels are few and closed:
stages, outcomes, reasons, and the operator's pool names. No task, session, user or worker is ever a label.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from topics.log.heartbeat import HeartbeatSender
    from topics.log.lag import Lag

LAG_S = 3.0
"""For Kafka's answers about lags. Prometheus waits 10 s for an answer by default."""
REASONS = 50
"""Reasons of `polar_skipped` that have a label of their own: record types unknown here are named by whoever writes the log."""

Values = float | Mapping[str, float] | Mapping[tuple[str, str], float] | Mapping[tuple[str, str, str], float]
"""A number without labels, or numbers by label value; several labels' values form a tuple, in order."""


@dataclass
class _Family:
    kind: type[CounterMetricFamily | GaugeMetricFamily]
    description: str
    labels: tuple[str, ...]
    readers: list[Callable[[], Values]] = field(default_factory=list)

    def total(self) -> dict[tuple[str, ...], float]:
        """The readers' values added up, by labels."""
        total: dict[tuple[str, ...], float] = {}
        for read in self.readers:
            values = read()
            for key, value in values.items() if isinstance(values, Mapping) else [((), values)]:
                labels: tuple[str, ...] = (key,) if isinstance(key, str) else key
                total[labels] = total.get(labels, 0.0) + value
        return total


class Metrics(Collector):
    """One process's metrics, and whether it is ready."""

    def __init__(self, unready_reason: Callable[[], str | None] | None = None) -> None:
        """`unready_reason`: why the process isn't ready, None if it is. Without it, a process is ready while its hearts are connected."""
        self.registry = CollectorRegistry()
        self._unready_reason = unready_reason or self._silent_hearts
        self._families: dict[str, _Family] = {}
        self._hearts: dict[str, HeartbeatSender] = {}
        self._lags: dict[str, Lag] = {}
        self._measured: dict[str, float] = {}
        """The newest lags by role; without those that Kafka didn't tell."""
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def gauge(self, name: str, description: str, labels: Sequence[str], read: Callable[[], Values]) -> None:
        """Register a value that goes up and down."""
        self._register(name, _Family(GaugeMetricFamily, description, tuple(labels)), read)

    def counter(self, name: str, description: str, labels: Sequence[str], read: Callable[[], Values]) -> None:
        """Register a value that only grows; Prometheus sees `<name>_total`."""
        self._register(name, _Family(CounterMetricFamily, description, tuple(labels)), read)

    def skipped(self, role: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Register the records that a role skipped, by reason; reasons beyond REASONS are counted as `other`."""

        def values() -> Values:
            reasons = list(read().items())
            other = sum(count for _, count in reasons[REASONS:])
            return {(role, reason): count for reason, count in [*reasons[:REASONS], ("other", other)] if count}

        self.counter("polar_skipped", "Records and facts that were skipped", ("role", "reason"), values)

    def heart(self, role: str, heart: HeartbeatSender) -> None:
        """Register a role, which is ready while its heart is connected."""
        self._hearts[role] = heart
        self.gauge(
            "polar_connected",
            "1 while the role's heartbeats reach Kafka",
            ("role",),
            lambda: {role: float(heart.connected)},
        )

    def lag(self, role: str, lag: Lag) -> None:
        """Register a role that reads partitions of its own."""
        self._lags[role] = lag
        self.gauge(
            "polar_lag",
            "Records that the role has yet to read from its partitions",
            ("role",),
            lambda: {role: self._measured[role]} if role in self._measured else {},
        )

    def unready_reason(self) -> str | None:
        """Why this process isn't ready; None if it is."""
        return self._unready_reason()

    def _silent_hearts(self) -> str | None:
        silent = [role for role, heart in self._hearts.items() if not heart.connected]
        if silent:
            return f"no heartbeat of {', '.join(silent)} has reached Kafka within the last seconds"
        return None if self._hearts else "it is starting"

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, with the lags of the last `scrape`."""
        return generate_latest(self.registry)

    async def scrape(self) -> bytes:
        """All metrics in Prometheus' text format. A lag that Kafka doesn't tell within 3 s is left out."""
        measuring = {role: asyncio.ensure_future(lag.measure()) for role, lag in self._lags.items()}
        try:
            if measuring:
                await asyncio.wait(measuring.values(), timeout=LAG_S)
            told = {role: task for role, task in measuring.items() if task.done() and task.exception() is None}
            self._measured = {role: task.result() for role, task in told.items()}
        finally:
            for task in measuring.values():
                task.cancel()
            await asyncio.gather(*measuring.values(), return_exceptions=True)
        return self.text()

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for name, family in self._families.items():
            metric = family.kind(name, family.description, labels=family.labels)
            for labels, value in sorted(family.total().items()):
                metric.add_metric(labels, value)
            yield metric

    def _register(self, name: str, family: _Family, read: Callable[[], Values]) -> None:
        known = self._families.setdefault(name, family)
        assert (known.kind, known.labels) == (family.kind, family.labels), f"{name} is one metric, with the same labels"
        known.readers.append(read)
