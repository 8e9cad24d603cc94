"""The metrics of a process that runs no consumer: `polar rest`, `polar page`, `polar export … --follow`.

Values are read from their owners when Prometheus asks. `consumers.metrics_http` serves the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class ProcessMetrics(Collector):
    """The metrics of one process, each with the label `role`."""

    def __init__(self, role: str, unready_reason: Callable[[], str | None] = lambda: None) -> None:
        """`role`: `rest`, `page` or `export`. `unready_reason`: why the process isn't ready; None if it is."""
        self.role = role
        self.unready_reason = unready_reason
        self.registry = CollectorRegistry()
        self._values: list[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, Callable[[], float]]] = []
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a value that goes up and down."""
        self._values.append((GaugeMetricFamily, name, description, value))

    def counter(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a value that only grows; Prometheus sees `<name>_total`."""
        self._values.append((CounterMetricFamily, name, description, value))

    async def scrape(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for kind, name, description, value in self._values:
            family = kind(name, description, labels=["role"])
            family.add_metric([self.role], value())
            yield family
