"""The scripted engine's metrics for Prometheus, at `/metrics` of its port, where vLLM has its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class EngineMetrics(Collector):
    """Counts of one engine since its start."""

    def __init__(self) -> None:
        self._started = 0.0
        self._calls: Counter[str] = Counter()
        """By outcome."""
        self._prompt_tokens = 0
        self._sampled_tokens = 0

    def count(self, outcome: str, prompt_tokens: int, sampled_tokens: int) -> None:
        """Count a call."""
        self._calls[outcome] += 1
        self._prompt_tokens += prompt_tokens
        self._sampled_tokens += sampled_tokens

    def text(self, started: float) -> bytes:
        """Prometheus' text format. `started`: the engine's start, Unix seconds; a process may run several engines."""
        self._started = started
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield GaugeMetricFamily("process_start_time_seconds", "Start of the engine, Unix seconds", value=self._started)
        calls = CounterMetricFamily("polar_scripted_calls", "Calls by outcome", labels=["outcome"])
        for outcome, count in sorted(self._calls.items()):
            calls.add_metric([outcome], count)
        yield calls
        yield CounterMetricFamily("polar_scripted_prompt_tokens", "Tokens of all prompts", value=self._prompt_tokens)
        yield CounterMetricFamily("polar_scripted_sampled_tokens", "Sampled tokens", value=self._sampled_tokens)
