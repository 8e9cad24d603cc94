"""What a worker process tells Prometheus, and whoever asks if it is well: `polar worker … --metrics-port N`.

Figures are read from their owners when they are asked for, on the loop that changes them: a role counts in plain numbers and says once
where they are. Several roles of a process may tell figures of one name. Labels are few and closed: stages, outcomes, reasons, and the
pools that the operator named; no task, session, user or worker is ever one. Nothing here is secret, and nothing asks for a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from topics.types.errors import NotReady

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from topics.log.heartbeat import Heart

REASONS = 50
REQUEST_BYTES = 16 * 1024
CONNECTIONS = 32
REQUEST_S = 5.0
"""For a whole request to come and its answer to go."""

Figures = float | Mapping[str, float] | Mapping[tuple[str, str], float] | Mapping[tuple[str, str, str], float]
"""Without labels a number; with one label by its value; with several by theirs, in order."""

log = structlog.get_logger()


@dataclass
class _Family:
    kind: type[CounterMetricFamily | GaugeMetricFamily]
    what: str
    labels: tuple[str, ...]
    reads: list[Callable[[], Figures]] = field(default_factory=list)


class Metrics(Collector):
    """One process's figures, and whether its roles are ready."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._hearts: dict[str, Heart] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self.gauge(
            "polar_connected",
            "1 while the role's heartbeats reach Kafka",
            ("role",),
            lambda: {role: float(heart.connected) for role, heart in self._hearts.items()},
        )

    def gauge(self, name: str, what: str, labels: Sequence[str], read: Callable[[], Figures]) -> None:
        """Tell a figure that goes up and down. What several tell under one name and labels is added up."""
        self._tell(GaugeMetricFamily, name, what, labels, read)

    def counter(self, name: str, what: str, labels: Sequence[str], read: Callable[[], Figures]) -> None:
        """Tell a figure that only grows; Prometheus sees `<name>_total`."""
        self._tell(CounterMetricFamily, name, what, labels, read)

    def skipped(self, role: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Tell of records that a role passed over, by reason: the first REASONS of them, since types unknown here are named elsewhere."""

        def figures() -> Figures:
            reasons = list(read().items())
            rest = sum(count for _, count in reasons[REASONS:])
            return {(role, reason): count for reason, count in [*reasons[:REASONS], ("other", rest)] if count}

        self.counter("polar_skipped", "Records and facts passed over", ("role", "reason"), figures)

    def heart(self, role: str, heart: Heart) -> None:
        """The role is ready while its heart is connected."""
        self._hearts[role] = heart

    def unready(self) -> str | None:
        """Why this process isn't ready; None when it is."""
        silent = [role for role, heart in self._hearts.items() if not heart.connected]
        if silent:
            return f"no heartbeat of {', '.join(silent)} has reached Kafka within the last seconds"
        return None if self._hearts else "it is starting"

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        for name, family in self._families.items():
            told = family.kind(name, family.what, labels=family.labels)
            for labels, value in sorted(_added_up(family.reads).items()):
                told.add_metric(labels, value)
            yield told

    def _tell(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        what: str,
        labels: Sequence[str],
        read: Callable[[], Figures],
    ) -> None:
        family = self._families.setdefault(name, _Family(kind, what, tuple(labels)))
        assert (family.kind, family.labels) == (kind, tuple(labels)), f"{name} is one figure, with the same labels"
        family.reads.append(read)


def _added_up(reads: Sequence[Callable[[], Figures]]) -> dict[tuple[str, ...], float]:
    added: dict[tuple[str, ...], float] = {}
    for read in reads:
        figures = read()
        items = figures.items() if isinstance(figures, Mapping) else [((), figures)]
        for key, value in items:
            labels: tuple[str, ...] = (key,) if isinstance(key, str) else key
            added[labels] = added.get(labels, 0.0) + value
    return added


@asynccontextmanager
async def served(metrics: Metrics, host: str, port: int) -> AsyncIterator[None]:
    """Answer `GET /metrics`, `/healthz` and `/readyz` meanwhile; port 0 is any free one. Raises NotReady where it can't listen."""

    answering: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(answering) >= CONNECTIONS:
            writer.close()
            return
        task = asyncio.create_task(_serve(metrics, reader, writer), name="metrics-request")
        answering.add(task)
        task.add_done_callback(answering.discard)

    try:
        server = await asyncio.start_server(connected, host, port, limit=REQUEST_BYTES)
    except OSError as error:
        raise NotReady(f"metrics can't be served on {host}:{port}: {error}; choose another --metrics-port") from None
    bound = server.sockets[0].getsockname()[1]
    log.info("metrics served", action="metrics.served", url=f"http://{host}:{bound}/metrics")
    try:
        yield
    finally:
        server.close()
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _serve(metrics: Metrics, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(REQUEST_S):
            writer.write(_answer(metrics, await reader.readuntil(b"\r\n\r\n")))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # no request of ours
    finally:
        writer.transport.abort()


def _answer(metrics: Metrics, request: bytes) -> bytes:
    """One request's answer; the connection ends with it."""
    method, _, rest = request.decode("latin-1").partition(" ")
    body, kind, status = b"ok\n", "text/plain; charset=utf-8", "200 OK"
    match urlsplit(rest.partition(" ")[0]).path:
        case _ if method not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"GET or HEAD\n"
        case "/metrics":
            body, kind = metrics.text(), CONTENT_TYPE_LATEST
        case "/healthz":
            pass
        case "/readyz":
            if (why := metrics.unready()) is not None:
                status, body = "503 Service Unavailable", f"{why}\n".encode()
        case _:
            status, body = "404 Not Found", b"/metrics, /healthz and /readyz are here\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else body)
