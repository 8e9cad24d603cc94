"""The proxy's metrics, in a registry of its own. Label values are few: no session, key or model name is ever one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from proxy.engines.pool import Engines

BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
ACK_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30, 120)


class ProxyMetrics:
    """The metrics of one proxy."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.calls = counter("polar_proxy_calls", "Model calls by outcome", ["dialect", "outcome"])
        self.refusals = counter("polar_proxy_refusals", "Requests that got an error", ["reason"])
        self.repeated = counter("polar_proxy_repeated", "Requests that got another's answer")
        self.in_flight = Gauge("polar_proxy_calls_in_flight", "Model calls under way", registry=self.registry)
        self.engine_s = histogram("polar_proxy_engine_seconds", "Engine's part of a call", buckets=BUCKETS_S)
        self.ack_s = histogram("polar_proxy_ack_seconds", "Wait for Kafka", buckets=ACK_BUCKETS_S)
        self.disowned = counter("polar_proxy_disowned", "Calls given up after capture began", ["reason"])
        forwarded = "Requests sent to the proxy that owns their session"
        self.forwarded = counter("polar_proxy_forwarded", forwarded, ["outcome"])
        self.held = counter("polar_proxy_held", "Requests that waited for their session's owner")
        misdirected = "Forwarded requests refused because their session isn't ours"
        self.misdirected = counter("polar_proxy_misdirected", misdirected)
        self.read_back = counter("polar_proxy_read_back", "Claims read back from the log")
        doubted = "Answers whose weights the engine or the published version doesn't identify"
        self.doubted = counter("polar_proxy_policy_doubts", doubted, ["reason"])
        misread = "Answers whose engine read another prompt than is recorded"
        self.misread = counter("polar_proxy_prompt_doubts", misread, ["engine", "reason"])
        uncaptured = "Values to replay that calls were recorded without"
        self.uncaptured = counter("polar_proxy_uncaptured", uncaptured, ["field", "reason"])
        unstored = "Images and sounds that calls were recorded without the bytes of"
        self.media_unstored = counter("polar_proxy_media_unstored", unstored, ["reason"])
        self.unrecorded = counter("polar_proxy_unrecorded", "Records that didn't reach the log", ["record"])

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Adds a gauge whose value is read at each scrape."""
        Gauge(name, what, registry=self.registry).set_function(value)

    def watch_engines(self, engines: Engines) -> None:
        """Adds the gauges of each engine, labelled with its name in the settings."""
        to, label = self.registry, ["engine"]
        calls = Gauge("polar_proxy_engine_calls", "Calls that an engine is asked", label, registry=to)
        waiting = Gauge("polar_proxy_engine_waiting", "Calls that wait their turn at an engine", label, registry=to)
        healthy = Gauge("polar_proxy_engine_servers_up", "An engine's servers that are up", label, registry=to)
        for engine in engines:
            calls.labels(engine.name).set_function(partial(getattr, engine.admission, "under_way"))
            waiting.labels(engine.name).set_function(partial(getattr, engine.admission, "waiting"))
            healthy.labels(engine.name).set_function(partial(getattr, engine, "healthy"))

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
