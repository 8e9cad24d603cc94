"""What is known of the processes behind the servers' URLs: since when each runs, and whether it names its weights.

Proxies write it to `polar.fleet`, so that a proxy that starts together with a server knows what its predecessor knew. Invariant: a process
is believed to serve a publication only if it ran when the weights were published. A process that reports no start is believed to have
run all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog

from proxy.engines.process import Process
from topics import fleet
from topics.fleet import EngineProcess, Publication
from topics.log.producer import LogProducer, RecordTooLargeError, UnacknowledgedError

REMEMBERED = 1_000
"""Number of records remembered as written, more than a large fleet has processes; then each that is found again is written again."""
SEND_S = 30.0
"""For an acknowledgement: longer than an election of a partition's leader."""

log = structlog.get_logger(__name__)


class EngineProcesses:
    """The newest known process of each server."""

    def __init__(self, urls: Mapping[str, Collection[str]], write: Callable[[EngineProcess], None]) -> None:
        """`urls`: those of each engine's servers. `write` gets each record for the log."""
        self._urls = urls
        self._write = write
        self._known: dict[tuple[str, str], EngineProcess] = {}
        """By engine and URL; `since` is None until the log has the record."""
        self._written: set[EngineProcess] = set()
        """Without `since`. Behind a load balancer proxies find several processes at one URL; each writes what it finds once."""

    def read(self, record: EngineProcess, offset: int) -> None:
        """Applies a record of the log."""
        self._keep(record if record.since is not None else msgspec.structs.replace(record, since=offset))

    def found(self, engine: str, process: Process) -> None:
        """Applies the start that a server reports."""
        known = self._known.get((engine, process.url))
        if process.started_ms is not None and (known is None or known.started_ms != process.started_ms):
            self._learn(EngineProcess(engine, process.url, process.started_ms))

    def named(self, engine: str, process: Process) -> None:
        """Applies that a process has reported the version of its weights."""
        known = self._known.get((engine, process.url))
        if known is None or known.started_ms != process.started_ms or not known.names_weights:
            self._learn(EngineProcess(engine, process.url, process.started_ms, names_weights=True))

    def names_weights(self, engine: str) -> bool:
        """Whether a process of the engine has reported a version: one that reports none then serves no published weights."""
        known = (self._known.get((engine, url)) for url in self._urls.get(engine, ()))
        return any(process is not None and process.names_weights for process in known)

    def serves(self, engine: str, process: Process, publication: Publication) -> bool:
        """Whether the process ran when these weights were published.

        The order of records on the log proves it without clocks. Otherwise the clocks of the server's host and of the publisher count.
        """
        if process.started_ms is None or process.started_ms <= publication.written_ms:
            return True
        known = self._known.get((engine, process.url))
        if known is None or known.started_ms != process.started_ms or known.since is None:
            return False
        return known.since < publication.offset

    def _keep(self, record: EngineProcess) -> EngineProcess:
        """The record with all that is known of its process, now the newest of its server."""
        key = record.engine, record.url
        known = self._known.get(key)
        if known is not None and known.started_ms == record.started_ms:
            since = min((each.since for each in (known, record) if each.since is not None), default=None)
            named = known.names_weights or record.names_weights
            record = msgspec.structs.replace(record, since=since, names_weights=named)
        self._known[key] = record
        return record

    def _learn(self, record: EngineProcess) -> None:
        whole = self._keep(record)
        if record not in self._written:
            if len(self._written) >= REMEMBERED:
                self._written.clear()
            self._written.add(record)
            self._write(whole)


class ProcessWriter:
    """Writes records of processes to `polar.fleet`, in the background. A lost one costs later proxies a proof that needs no clocks."""

    def __init__(self, producer: LogProducer) -> None:
        self._producer = producer
        self._sending: set[asyncio.Task[None]] = set()

    def write(self, record: EngineProcess) -> None:
        """Sends a record, once."""
        task = asyncio.get_running_loop().create_task(self._send(record), name="record of an engine's process")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def settle(self, deadline_s: float) -> None:
        """Waits for records under way, then drops them."""
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=deadline_s)
            for task in late:
                task.cancel()

    async def _send(self, record: EngineProcess) -> None:
        try:
            await self._producer.send(fleet.TOPIC, record, key=fleet.key_of(record), deadline_s=SEND_S)
        except (UnacknowledgedError, RecordTooLargeError) as error:
            log.warning(
                "an engine's process isn't on the log", action="process_unrecorded", url=record.url, reason=str(error)
            )
