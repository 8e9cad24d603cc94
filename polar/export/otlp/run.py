"""Sends the sessions of a lake to a tracing backend: those that are there, or also those that come.

Invariant: the position moves past a session only after the backend has taken all its spans. A crash therefore sends up to one portion
again, with the same ids, and loses nothing. A backend that is away stops the position, and with `follow` nothing else. One that goes on
refusing the same spans ends the command, because a skipped session would be missing without anyone noticing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from opentelemetry.sdk.trace import ReadableSpan

from analytics.queries import query
from analytics.queries.query import Reader
from polar.export import sessions
from polar.export.otlp import position as positions
from polar.export.otlp.backend import Backend, BackendError, RefusedError
from polar.export.otlp.portions import Portion, new_logs, next_portion, reports
from polar.export.otlp.position import Position
from polar.export.otlp.spans import CONVERSATION, Origin, Tracer
from polar.export.sessions import Selection
from topics.environment.settings import Settings
from topics.waiting.backoff import Backoff

BATCH_SPANS = 512
"""Spans in one request, as OpenTelemetry's own batches."""
CONTENTS_SPANS = 6
"""As BATCH_SPANS, with contents: each span may have three attributes of a MiB, and receivers refuse requests above 20 MiB or so."""
LOOK_S = 2.0
"""Time between two looks for new sessions; the lake writer commits every few seconds."""
PAUSES = Backoff(first_s=1.0, longest_s=60.0, jitter=0.2)
"""After the backend didn't take spans, on top of the exporter's own retries."""
REFUSALS = 10
"""Refusals in a row, about four minutes with PAUSES, after which `follow` ends: a gateway that is deployed anew also answers 404."""

LISTED = 3
"""Most ids of sessions in one message."""
REMEDY = "nothing is lost, and the next start sends them again. See `What a failure costs` in docs/tracing.md"

log = structlog.get_logger()


@dataclass
class Sent:
    """Counts of this process."""

    sessions: int = 0
    spans: int = 0
    waiting: int = 0
    """Partitions whose next session isn't complete in the lake yet, at the last look."""


class Export:
    """One selection of sessions on the way to one backend."""

    def __init__(
        self, settings: Settings, selection: Selection, backend: Backend, path: Path | None, *, with_contents: bool
    ) -> None:
        """`path`: the file of the position; None: it isn't kept."""
        self._settings = settings
        self._selection = selection
        self._backend = backend
        self._path = path
        self._with_contents = with_contents
        self._position: Position | None = None
        self.sent = Sent()
        self.failures = 0
        """Looks in a row that failed, in `follow`."""

    def send_all(self, is_stopped: Callable[[], bool] = lambda: False) -> Sent:
        """Send what is in the lake after the position, portion by portion, until `is_stopped`.

        Raises BackendError, NotReadyError without a lake, and InputError for a wrong `where` or position.
        """
        with query.connect(self._settings) as reader:
            position = self._position or self._loaded(reader)
            position = position.with_partitions(new_logs(reader, self._selection, position))
            origin = Origin(reader.manifest.cluster, self._settings.namespace)
            tracer = Tracer(origin, with_contents=self._with_contents)
            stopped: set[int] = set()
            while (portion := next_portion(reader, self._selection, position, stopped)) is not None:
                for batch in self._batches(reader, tracer, portion):
                    if is_stopped():
                        return self.sent
                    self._send(batch)
                self.sent.sessions += len(portion.finished)
                position = position.with_partitions(portion.after)
                positions.save(self._path, position)
                self._position = position
                stopped |= portion.waiting
            self.sent.waiting = len(stopped)
        return self.sent

    async def follow(self, stop: asyncio.Event) -> None:
        """Send what is there and what comes, until `stop`, which ends it after the request in progress.

        After a BackendError the same spans are sent again, after a pause that grows up to a minute. Raises as `send_all`, and
        RefusedError for an endpoint that takes no spans and for spans that it refuses REFUSALS times in a row.
        """
        try:
            await asyncio.to_thread(self._backend.send, [])
        except RefusedError:
            raise
        except BackendError as error:
            log.warning("the backend is away", action="otlp.away", why=str(error))
        refusals = 0
        while not stop.is_set():
            try:
                before = self.sent.sessions
                await asyncio.to_thread(self.send_all, stop.is_set)
                self.failures, refusals, pause_s = 0, 0, LOOK_S
                if self.sent.sessions > before:
                    counts = {"sessions": self.sent.sessions, "spans": self.sent.spans}
                    log.info("sessions sent", action="otlp.sent", **counts, rejected=self._backend.rejected)
            except BackendError as error:
                if self.sent.sessions > before:
                    self.failures = refusals = 0
                self.failures += 1
                refusals = refusals + 1 if isinstance(error, RefusedError) else 0
                if refusals == REFUSALS:
                    raise
                pause_s = PAUSES.pause_s(self.failures, random.random())
                log.warning("will send again", action="otlp.failed", why=str(error), pause_s=round(pause_s, 1))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()

    def _loaded(self, reader: Reader) -> Position:
        selection = positions.described(self._selection, self._settings.namespace)
        return positions.load(self._path, reader.manifest.cluster, selection)

    def _batches(self, reader: Reader, tracer: Tracer, portion: Portion) -> Iterator[list[ReadableSpan]]:
        """The spans of a portion, in the order of its sessions, in batches for one request each."""
        if not portion.finished:
            return
        ended = reports(reader, portion.finished)
        limit = CONTENTS_SPANS if self._with_contents else BATCH_SPANS
        spans: list[ReadableSpan] = []
        for session in sessions.read(reader, portion.finished):
            session_id = session.trajectory.session_id
            spans += tracer.spans(session, ended[session_id], portion.emitted_ms[session_id])
            while len(spans) >= limit:
                yield spans[:limit]
                spans = spans[limit:]
        if spans:
            yield spans

    def _send(self, spans: Sequence[ReadableSpan]) -> None:
        try:
            self._backend.send(spans)
        except RefusedError as error:
            named = dict.fromkeys(str((span.attributes or {})[CONVERSATION]) for span in spans)
            raise RefusedError(f"{error}. Their sessions are {_listed(list(named))}; {REMEDY}") from None
        self.sent.spans += len(spans)


def _listed(names: Sequence[str]) -> str:
    """The names, or the first and the last of many."""
    return ", ".join(names) if len(names) <= LISTED else f"{names[0]} to {names[-1]} ({len(names)} sessions)"
